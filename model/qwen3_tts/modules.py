"""The holder of all tensors, the embeddings, the talker and the code predictor of Qwen3-TTS.

The holder has parameters of the published names and computes nothing.
"""

import torch
import torch.nn.functional as F
from torch import nn

from voxport.model.layers.basic import Layer
from voxport.model.layers.block import parts_of
from voxport.model.layers.qwen_block import QwenBlock, QwenBlockWeights, StackWeights
from voxport.model.layers.rope import RotaryTable
from voxport.model.qwen3_tts.codec.encoder import EncoderWeights
from voxport.model.qwen3_tts.codec.weights import CodecDecoderWeights
from voxport.model.qwen3_tts.config import PredictorConfig, Qwen3TTSConfig, TalkerConfig
from voxport.model.qwen3_tts.speaker import SpeakerEncoderWeights

TRAINING = "training of the speech tokenizer"
UNUSED = {  # prefix of tensor names: what would use them
    "speech_tokenizer.decoder.quantizer.rvq_first.input_proj.": TRAINING,
    "speech_tokenizer.decoder.quantizer.rvq_rest.input_proj.": TRAINING,
    "speech_tokenizer.encoder.": "voices from recordings, code books without a talker code, or training",
    "speaker_encoder.": "voices from recordings, which a Base model makes",
}


class PredictorWeights(nn.Module):
    """All `talker.code_predictor.*` tensors. Its input embeddings have the width of the talker."""

    def __init__(self, config: PredictorConfig, talker_width: int):
        super().__init__()
        others = config.num_code_groups - 1
        self.model = StackWeights(config)
        self.model.codec_embedding = nn.ModuleList(
            nn.Embedding(config.vocab_size, talker_width) for _ in range(others)
        )
        self.lm_head = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=False) for _ in range(others)
        )
        is_equal = config.hidden_size == talker_width
        self.small_to_mtp_projection: nn.Module = (
            nn.Identity() if is_equal else nn.Linear(talker_width, config.hidden_size)
        )


class TalkerWeights(nn.Module):
    """All `talker.*` tensors."""

    def __init__(self, config: TalkerConfig):
        super().__init__()
        width, text_width = config.hidden_size, config.text_hidden_size
        self.model = StackWeights(config)
        self.model.text_embedding = nn.Embedding(config.text_vocab_size, text_width)
        self.model.codec_embedding = nn.Embedding(config.vocab_size, width)
        self.text_projection = nn.ModuleDict(
            {"linear_fc1": nn.Linear(text_width, text_width), "linear_fc2": nn.Linear(text_width, width)}
        )
        self.codec_head = nn.Linear(width, config.vocab_size, bias=False)
        self.code_predictor = PredictorWeights(config.code_predictor_config, width)


class SpeechTokenizerWeights(nn.Module):
    """All `speech_tokenizer.*` tensors that graphs need."""

    def __init__(self, config: Qwen3TTSConfig):
        super().__init__()
        codec = config.codec
        self.decoder = CodecDecoderWeights(codec.decoder_config)
        if config.has_encoders:
            self.encoder = EncoderWeights(codec.encoder_config, codec.encoder_valid_num_quantizers)


class Qwen3TTSWeights(nn.Module):
    """All tensors that graphs need. Those of the speech tokenizer are below `speech_tokenizer`.

    Only Base models have the two encoders, which make voices from recordings.
    """

    def __init__(self, config: Qwen3TTSConfig):
        super().__init__()
        self.talker = TalkerWeights(config.talker_config)
        self.speech_tokenizer = SpeechTokenizerWeights(config)
        if config.speaker_encoder_config and config.has_encoders:
            self.speaker_encoder = SpeakerEncoderWeights(config.speaker_encoder_config)


class AllQwen3TTSWeights(Qwen3TTSWeights):
    """Also the tensors of `UNUSED`, but for flags of one value: both encoders of code books, all tables."""

    def __init__(self, config: Qwen3TTSConfig):
        super().__init__(config)
        codec, decoder = config.codec.encoder_config, config.codec.decoder_config
        if config.speaker_encoder_config:
            self.speaker_encoder = SpeakerEncoderWeights(config.speaker_encoder_config)
        self.speech_tokenizer.encoder = EncoderWeights(codec, codec.num_quantizers)
        for quantizer in self.speech_tokenizer.encoder.quantizer.children():
            quantizer.output_proj = nn.Conv1d(codec.codebook_dim, codec.hidden_size, 1, bias=False)
        for quantizer in self.speech_tokenizer.decoder.quantizer.children():
            size = decoder.codebook_dim // 2
            quantizer.input_proj = nn.Conv1d(decoder.codebook_dim, size, 1, bias=False)


class TextEmbedding(nn.Module):
    """ids int64 [1, S] of text -> [1, S, width]: a table and two linears."""

    def __init__(self, weights: TalkerWeights):
        super().__init__()
        self.table: Layer = weights.model.get_submodule("text_embedding")
        self.fc1: Layer = weights.text_projection["linear_fc1"]
        self.fc2: Layer = weights.text_projection["linear_fc2"]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.silu(self.fc1(self.table(ids))))


def code_tables(weights: TalkerWeights) -> nn.ModuleList:
    """Tables of the embeddings of code 0 to K - 1."""
    others = weights.code_predictor.model.get_submodule("codec_embedding")
    return nn.ModuleList([weights.model.get_submodule("codec_embedding"), *others.children()])


class CodeEmbedding(nn.Module):
    """codes int64 [B, T, K] of frames -> [B, T, width]: the sum of one row per code book.

    Book 0 is the talker's table, the others are the code predictor's. A code below 0 adds nothing.
    """

    def __init__(self, weights: TalkerWeights):
        super().__init__()
        self.tables = code_tables(weights)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        rows = [
            torch.where(codes[..., index, None] < 0, 0.0, table(codes[..., index].clamp_min(0)))
            for index, table in enumerate(self.tables)
        ]
        return torch.stack(rows).sum(dim=0)


def filtered_logits(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """logits [B, V], settings [B] -> logits / temperature, and -inf for ids outside top_k or top_p.

    As `runtime.sampler.sample`: the k largest, ties included, then the fewest whose probabilities add up to
    at least p.
    """
    scores = logits / temperature[:, None]
    ordered = scores.topk(scores.shape[-1]).values  # ExecuTorch has no kernel for sort
    left_out = torch.arange(scores.shape[-1]) >= top_k[:, None]
    chance = torch.where(left_out, -torch.inf, ordered).softmax(dim=-1)
    left_out = torch.logical_or(left_out, chance.cumsum(dim=-1) - chance >= top_p[:, None])
    least = torch.where(left_out, torch.inf, ordered).amin(dim=-1, keepdim=True)
    return torch.where(scores < least, -torch.inf, scores)


class CodePredictor(nn.Module):
    """Codes 1 to K - 1 of a frame, one after another, in one graph.

    hidden [B, 1, talker width], codes int64 [B, K] -> chosen int64 [B, K], logits [B, K - 1, codes].

    Position 0 is the talker's hidden value, position p > 0 the embedding of code p - 1, whose output gives
    code p. A code of `codes` that is not negative is taken as it is. The others are drawn: the argmax of
    `filtered_logits` and `noise` [B, K - 1, codes]. Frames share nothing but `hidden`.
    """

    def __init__(self, weights: TalkerWeights, config: PredictorConfig):
        super().__init__()
        own = weights.code_predictor
        self.config = config
        self.layers = nn.ModuleList(QwenBlock(part) for part in parts_of(own.model.layers, QwenBlockWeights))
        self.blocks = parts_of(self.layers, QwenBlock)
        self.norm = own.model.norm
        self.rotary = RotaryTable(
            config.head_dim, config.rope_theta, config.num_code_groups, interleaved=False
        )
        self.tables = code_tables(weights)[:-1]  # nothing follows the last code
        self.heads = own.lm_head
        self.projection: Layer = own.small_to_mtp_projection

    def forward(
        self,
        hidden: torch.Tensor,
        codes: torch.Tensor,
        noise: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows: list[tuple[torch.Tensor, ...]] = [() for _ in self.blocks]
        chosen, logits = [codes[:, 0]], []
        x = torch.cat((hidden, self.tables[0](codes[:, :1])), dim=1)
        start = 0
        for index, head in enumerate(self.heads):
            y, start = self.projection(x), start + x.shape[1]
            positions = torch.arange(start - x.shape[1], start)
            rotation = self.rotary(positions.expand(codes.shape[0], -1))
            for layer, block in enumerate(self.blocks):
                y, *grown = block.attend_and_append(y, rotation, rows[layer])
                rows[layer] = tuple(grown)
            logits.append(head(self.norm(y[:, -1])))
            drawn = (filtered_logits(logits[-1], temperature, top_k, top_p) + noise[:, index]).argmax(dim=-1)
            given = codes[:, index + 1]
            chosen.append(torch.where(given < 0, drawn, given))
            if index + 1 < len(self.tables):
                x = self.tables[index + 1](chosen[-1])[:, None]
        return torch.stack(chosen, dim=1), torch.stack(logits, dim=1)
