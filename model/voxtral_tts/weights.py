"""Checkpoint holders: modules whose parameters have the published tensor names. They compute nothing.

`build` makes the computing modules from them.
"""

import torch
from torch import nn

from model.checkpoint import Checkpoint, expected_tensors
from model.layers.attention import AttentionWeights
from model.layers.block import BlockWeights
from model.layers.feed_forward import FeedForwardWeights
from model.layers.norm import RMSNorm
from model.voxtral_tts.config import AudioTokenizerArgs, VoxtralTTSConfig

# Small linears whose error would change sampling or the stop rule.
HIGH_PRECISION = (
    "acoustic_transformer.input_projection",
    "acoustic_transformer.acoustic_codebook_output",
    "acoustic_transformer.semantic_codebook_output",
)
CONSTANT = ("acoustic_transformer.time_projection",)  # folded at export; in no graph
WEIGHTS_OF_GRAPH = {
    "embed_text": ("mm_audio_embeddings.tok_embeddings",),
    "embed_codes": ("mm_audio_embeddings.audio_codebook_embeddings",),
    "backbone": (
        "layers",
        "norm",
        "acoustic_transformer.semantic_codebook_output",
        "acoustic_transformer.llm_projection",
    ),
    "acoustic_step": (
        "acoustic_transformer.input_projection",
        "acoustic_transformer.time_projection",
        "acoustic_transformer.acoustic_codebook_output",
        "acoustic_transformer.norm",
        "acoustic_transformer.layers",
    ),
    "codec": ("audio_tokenizer",),
}


class EmbeddingWeights(nn.Module):
    """The two tables."""

    def __init__(self, config: VoxtralTTSConfig):
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        codes = nn.Embedding(config.code_table_rows, config.dim)
        self.audio_codebook_embeddings = nn.ModuleDict({"embeddings": codes})


class AcousticWeights(nn.Module):
    """All `acoustic_transformer.*` tensors."""

    def __init__(self, config: VoxtralTTSConfig):
        super().__init__()
        args, books = config.acoustic, config.audio.n_acoustic_codebook
        self.input_projection = nn.Linear(books, args.dim, bias=False)
        self.time_projection = nn.Linear(args.dim, args.dim, bias=False)
        self.llm_projection = nn.Linear(args.input_dim, args.dim, bias=False)
        self.semantic_codebook_output = nn.Linear(config.dim, config.semantic_rows, bias=False)
        self.acoustic_codebook_output = nn.Linear(args.dim, books, bias=False)
        self.norm = RMSNorm(args.dim, args.norm_eps)
        self.layers = nn.ModuleList(BlockWeights(args) for _ in range(args.n_layers))


class ConvolutionWeights(nn.Module):
    """A weight-normed convolution, `conv.parametrizations.weight.original0` and `original1`."""

    def __init__(self, first: int, second: int, kernel: int):
        super().__init__()
        parts = {"original0": torch.empty(first, 1, 1), "original1": torch.empty(first, second, kernel)}
        self.conv = nn.Module()
        self.conv.parametrizations = nn.ModuleDict({"weight": nn.ParameterDict(parts)})

    def fused(self) -> torch.Tensor:
        """The weight g · v / |v|, with the norm per first index: [first, second, kernel]."""
        g, v = (self.get_parameter(f"conv.parametrizations.weight.original{index}") for index in range(2))
        weight: torch.Tensor = g * v / v.norm(dim=(1, 2), keepdim=True)
        return weight


class CodecAttentionWeights(AttentionWeights):
    """Self-attention with a norm over the full width of queries and keys."""

    def __init__(self, args: AudioTokenizerArgs):
        super().__init__(args)
        width = args.n_heads * args.head_dim
        self.q_norm, self.k_norm = RMSNorm(width, args.qk_norm_eps), RMSNorm(width, args.qk_norm_eps)


class CodecBlockWeights(nn.Module):
    """A pre-norm block with a learned scale per channel on both branches."""

    def __init__(self, args: AudioTokenizerArgs):
        super().__init__()
        self.attention = CodecAttentionWeights(args)
        self.attention_norm = RMSNorm(args.dim, args.norm_eps)
        self.ffn_norm = RMSNorm(args.dim, args.norm_eps)
        self.feed_forward = FeedForwardWeights(args.dim, args.hidden_dim)
        self.attention_scale = nn.Parameter(torch.empty(args.dim))
        self.ffn_scale = nn.Parameter(torch.empty(args.dim))


class CodecStageWeights(nn.Module):
    """The blocks between two convolutions."""

    def __init__(self, args: AudioTokenizerArgs, length: int):
        super().__init__()
        self.layers = nn.ModuleList(CodecBlockWeights(args) for _ in range(length))


class CodecWeights(nn.Module):
    """All `audio_tokenizer.*` tensors: the decoder and its code book."""

    def __init__(self, args: AudioTokenizerArgs):
        super().__init__()
        latent = args.semantic_dim + args.acoustic_dim
        blocks: list[nn.Module] = []
        stages = zip(args.decoder_transformer_lengths, args.decoder_convs_kernels, strict=True)
        for stage, (length, kernel) in enumerate(stages):
            # Conv1d is [out, in, k]; ConvTranspose1d is [in, out, k].
            blocks.append(ConvolutionWeights(args.dim, args.dim if stage else latent, kernel))
            blocks.append(CodecStageWeights(args, length))
        self.decoder_blocks = nn.ModuleList(blocks)
        self.output_proj = ConvolutionWeights(
            args.pretransform_patch_size, args.dim, args.patch_proj_kernel_size
        )
        book = {
            "embedding_sum": torch.empty(args.semantic_codebook_size, args.semantic_dim),
            "cluster_usage": torch.empty(args.semantic_codebook_size),
        }
        self.quantizer = nn.ModuleDict({"semantic_codebook": nn.ParameterDict(book)})


class VoxtralTTSWeights(nn.Module):
    """All tensors of a checkpoint."""

    def __init__(self, config: VoxtralTTSConfig):
        super().__init__()
        self.mm_audio_embeddings = EmbeddingWeights(config)
        self.layers = nn.ModuleList(BlockWeights(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.acoustic_transformer = AcousticWeights(config)
        self.audio_tokenizer = CodecWeights(config.codec)


def build_root(config: VoxtralTTSConfig) -> VoxtralTTSWeights:
    """The holder of all tensors on the meta device: shapes without storage."""
    with torch.device("meta"):
        return VoxtralTTSWeights(config).requires_grad_(False)


def open_root(config: VoxtralTTSConfig, checkpoint: Checkpoint) -> VoxtralTTSWeights:
    """The holder for a checkpoint, with every tensor checked and none loaded. Raises CheckpointError."""
    root = build_root(config)
    checkpoint.check(expected_tensors(root))
    return root
