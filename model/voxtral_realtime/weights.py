"""Checkpoint holders: modules whose parameters have the published tensor names. They compute nothing.

`build` makes the computing modules from them.
"""

import torch
from torch import nn

from model.checkpoint import Checkpoint, expected_tensors
from model.layers.block import BlockWeights
from model.layers.norm import RMSNorm
from model.voxtral_realtime.config import KERNEL, EncoderArgs, VoxtralRealtimeConfig

AUDIO = "mm_streams_embeddings.embedding_module"
HIGH_PRECISION: tuple[str, ...] = ()
CONSTANT = ("layers.*.ada_rms_norm_t_cond.*",)  # folded at export; in no graph
WEIGHTS_OF_GRAPH = {
    "embed_tokens": (f"{AUDIO}.tok_embeddings",),
    "encoder": (f"{AUDIO}.whisper_encoder", f"{AUDIO}.audio_language_projection"),
    "decoder": ("layers", "norm", "output"),
}


class ConvolutionWeights(nn.Module):
    """A convolution under its published name, `….conv`."""

    def __init__(self, channels: int, out: int):
        super().__init__()
        self.conv = nn.Conv1d(channels, out, KERNEL)


class EncoderStackWeights(nn.Module):
    """All `whisper_encoder.transformer.*` tensors."""

    def __init__(self, args: EncoderArgs):
        super().__init__()
        self.layers = nn.ModuleList(BlockWeights(args, biases=True) for _ in range(args.n_layers))
        self.norm = RMSNorm(args.dim, args.norm_eps)


class EncoderWeights(nn.Module):
    """All `whisper_encoder.*` tensors."""

    def __init__(self, args: EncoderArgs):
        super().__init__()
        mels = args.audio_encoding_args.num_mel_bins
        self.conv_layers = nn.ModuleList(
            (ConvolutionWeights(mels, args.dim), ConvolutionWeights(args.dim, args.dim))
        )
        self.transformer = EncoderStackWeights(args)


class AudioWeights(nn.Module):
    """All `mm_streams_embeddings.embedding_module.*` tensors: token table, encoder and adapter."""

    def __init__(self, config: VoxtralRealtimeConfig):
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.whisper_encoder = EncoderWeights(config.encoder)
        stacked = config.encoder.dim * config.downsample
        self.audio_language_projection = nn.Sequential(
            nn.Linear(stacked, config.dim, bias=False),
            nn.GELU(),
            nn.Linear(config.dim, config.dim, bias=False),
        )


class DecoderBlockWeights(BlockWeights):
    """A decoder block, with the two linears that scale its second norm by the delay."""

    def __init__(self, config: VoxtralRealtimeConfig):
        super().__init__(config)
        inner = config.ada_rms_norm_t_cond_dim
        self.ada_rms_norm_t_cond = nn.Sequential(
            nn.Linear(config.dim, inner, bias=False), nn.GELU(), nn.Linear(inner, config.dim, bias=False)
        )


class VoxtralRealtimeWeights(nn.Module):
    """All tensors of a checkpoint, and the output head.

    Head and token table are one parameter, unless a recipe quantises them separately.
    """

    def __init__(self, config: VoxtralRealtimeConfig):
        super().__init__()
        self.mm_streams_embeddings = nn.Module()
        self.mm_streams_embeddings.embedding_module = AudioWeights(config)
        self.layers = nn.ModuleList(DecoderBlockWeights(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.output.weight = self.audio.tok_embeddings.weight

    @property
    def audio(self) -> AudioWeights:
        found = self.get_submodule(AUDIO)
        assert isinstance(found, AudioWeights)
        return found


def build_root(config: VoxtralRealtimeConfig) -> VoxtralRealtimeWeights:
    """The holder of all tensors on the meta device: shapes without storage."""
    with torch.device("meta"):
        return VoxtralRealtimeWeights(config).requires_grad_(False)


def open_root(config: VoxtralRealtimeConfig, checkpoint: Checkpoint) -> VoxtralRealtimeWeights:
    """The holder for a checkpoint, with every tensor checked and none loaded. Raises CheckpointError."""
    root = build_root(config)
    checkpoint.check(expected_tensors(root))
    return root
