"""The codec for training: an encoder that is not published, the quantiser, and the published decoder.

The decoder computes what `model.voxtral_tts.codec.Codec` computes, over batches and with gradients.

Acoustic values are one frame later than semantic codes, and so is the sound. The language model chooses both
parts of a frame at once. With the delay it knows the semantic code of the sound whose acoustic values it
gives: otherwise these are a mean over all codes that it could have chosen.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from tools.training.data.espeak import PHONEMES
from tools.training.layers import attend_window, feed_forward, initialise, project
from voxport.bundle.constants.voxtral_tts import FIRST_CODE
from voxport.model.layers.basic import FeedForwardWeights, RMSNorm, codebook_entries
from voxport.model.layers.block import parts_of
from voxport.model.voxtral_tts.codec import CodecBlockWeights, CodecWeights, ConvolutionWeights
from voxport.model.voxtral_tts.config import AudioTokenizerArgs

LAYER_SCALE = 0.1  # at the start
BOOK_DECAY = 0.97  # how much each step keeps of the counts and sums of the code book
# An entry of a lower count becomes an encoded frame with a new count. 37 batches later it is dead again if
# no frame was near it. Where that takes long, one entry wins all frames before they differ.
DEAD_USAGE, NEW_USAGE = 0.1, 0.3
LIKENESS = 6.0  # of squared distances in the code book; the nearest entry is 15 away in the median
SUBFRAMES = 4  # parts of a frame, each with a phoneme
ENCODER_KERNEL = 7
FRAME_SAMPLES = 1920
PHONEME_WIDTH, PAST_FRAMES = 32, 3
PAST_NOISE, LEAST_VARIANCE = 0.2, 1e-6
PULL_WEIGHT = 0.25  # of the expectation on the encoder


class Encoded(NamedTuple):
    """T frames: semantic [B, T, semantic_dim], not quantised; acoustic [B, T, A] in (-1, 1), delayed.

    `redundancy` is the mean squared correlation of two acoustic values, a loss.
    """

    semantic: torch.Tensor
    acoustic: torch.Tensor
    redundancy: torch.Tensor


class Decoded(NamedTuple):
    """samples [B, T · 1920], a frame later than the sound. phonemes [B, 4·T, classes] are logits from the
    semantic codes, `unquantised` from the vectors before the quantiser.

    `commitment`, `expectation` and `redundancy` are losses. `unexplained` is the share of the variance of
    acoustic values that phonemes and earlier frames do not explain, `used` that of the book in this batch.
    """

    samples: torch.Tensor
    commitment: torch.Tensor
    expectation: torch.Tensor
    redundancy: torch.Tensor
    unexplained: torch.Tensor
    phonemes: torch.Tensor
    unquantised: torch.Tensor
    used: torch.Tensor


class _EncoderBlock(nn.Module):
    """Two convolutions around a gate, of the frames before and after: [B, S, dim] -> [B, S, dim]."""

    def __init__(self, dim: int, hidden: int, eps: float):
        super().__init__()
        self.norm, self.ffn_norm = RMSNorm(dim, eps), RMSNorm(dim, eps)
        self.mix = nn.Conv1d(dim, dim, ENCODER_KERNEL, padding=ENCODER_KERNEL // 2, groups=dim)
        self.wo = nn.Linear(dim, dim)
        self.feed_forward = FeedForwardWeights(dim, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.wo(self.mix(self.norm(x).mT).mT)
        return x + feed_forward(self.feed_forward, self.ffn_norm(x))


class EncoderStages(nn.Module):
    """samples [B, T · 1920] -> what each stage gives [B, S, dim], at four rates; the last has T rows."""

    def __init__(self, args: AudioTokenizerArgs):
        super().__init__()
        self.patch = args.pretransform_patch_size
        self.stem = nn.Conv1d(self.patch, args.dim, ENCODER_KERNEL, padding=ENCODER_KERNEL // 2)
        strides = args.decoder_convs_strides[:0:-1]
        stages: list[nn.Module] = [_EncoderBlock(args.dim, args.hidden_dim, args.norm_eps)]
        for stride in strides:
            stages.append(nn.Conv1d(args.dim, args.dim, 2 * stride, stride, padding=stride // 2))
            stages.append(_EncoderBlock(args.dim, args.hidden_dim, args.norm_eps))
        self.stages = nn.ModuleList(stages)

    def forward(self, samples: torch.Tensor) -> list[torch.Tensor]:
        x, found = self.stem(samples.unflatten(1, (-1, self.patch)).mT).mT, []
        for stage in self.stages:
            if isinstance(stage, _EncoderBlock):
                found.append(x := stage(x))
            else:
                x = F.silu(stage(x.mT)).mT
        return found


class CodecEncoder(nn.Module):
    """samples [B, T · 1920] -> `Encoded`. It sees what follows a frame too: only training and data need
    it.
    """

    def __init__(self, args: AudioTokenizerArgs):
        super().__init__()
        self.stages = EncoderStages(args)
        self.norm = RMSNorm(args.dim, args.norm_eps)
        self.semantic = nn.Linear(args.dim, args.semantic_dim)
        self.acoustic = nn.Linear(args.dim, args.acoustic_dim)
        # Values that vary less are easier to expect: without this norm, the encoder gave constants.
        self.spread = nn.BatchNorm1d(args.acoustic_dim, affine=False)

    def forward(self, samples: torch.Tensor) -> Encoded:
        x = self.norm(self.stages(samples)[-1])
        # vectors of one length: otherwise the vectors shrink, and with them the loss of commitment
        semantic = F.rms_norm(self.semantic(x), (self.semantic.out_features,))
        spread = self.spread(self.acoustic(x).float().mT)
        rows = spread.mT.flatten(0, 1)
        correlation = F.normalize(rows, dim=0)
        redundancy = (correlation.mT @ correlation).square().mean() - 1 / rows.shape[1]
        return Encoded(semantic, _delayed(torch.tanh(spread.mT), 1), redundancy)


class Expectation(nn.Module):
    """What a language model can know of acoustic values, from phonemes and earlier frames.

    Only training needs it: the encoder learns values that can be expected, and the decoder bears them.
    """

    def __init__(self, args: AudioTokenizerArgs):
        super().__init__()
        width, latent = args.dim, args.semantic_dim + args.acoustic_dim
        self.phonemes = nn.Embedding(len(PHONEMES), PHONEME_WIDTH)
        self.stem = nn.Linear(SUBFRAMES * PHONEME_WIDTH, width)
        self.context = nn.ModuleList(_EncoderBlock(width, args.hidden_dim, args.norm_eps) for _ in range(2))
        self.past = nn.Linear(PAST_FRAMES * latent, width)
        self.mix = FeedForwardWeights(width, args.hidden_dim)
        self.out = nn.Linear(width, args.acoustic_dim)

    def forward(self, phonemes: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """phonemes int64 [B, 4·T], latents [B, T, D] of which earlier ones are read -> values [B, T, A]."""
        x = self.stem(self.phonemes(phonemes).unflatten(1, (-1, SUBFRAMES)).flatten(-2))
        for block in self.context:
            x = block(x)
        x = x + self.past(torch.cat([_delayed(latents, lag + 1) for lag in range(PAST_FRAMES)], dim=-1))
        found: torch.Tensor = torch.tanh(self.out(x + feed_forward(self.mix, x)))
        return found


class CodecModel(nn.Module):
    """Encoder, quantiser, published decoder as `weights`, a classifier of phonemes, and an expectation."""

    def __init__(self, args: AudioTokenizerArgs, seed: int = 0):
        super().__init__()
        self.args = args
        self.encoder = CodecEncoder(args)
        self.weights = CodecWeights(args)
        self.phoneme_head = nn.Linear(args.semantic_dim, SUBFRAMES * len(PHONEMES))
        self.expectation = Expectation(args)
        initialise(self, seed, sum(args.decoder_transformer_lengths))
        self._initialise_codec(seed)
        ratio = 2.0 ** (-8.0 / args.n_heads)
        self.slopes = nn.Buffer(ratio ** torch.arange(args.n_heads, dtype=torch.float32), persistent=False)

    def forward(self, samples: torch.Tensor, phonemes: torch.Tensor, noise: torch.Generator) -> Decoded:
        """samples [B, T · 1920] and phonemes [B, 4·T] through the quantiser and back.

        Half of the rows are decoded from expected acoustic values. Half of the other frames are rounded, half
        get noise of the same size: the decoder then bears codes that are near the right ones.
        """
        encoded = self.encoder(samples)
        codes = self.nearest(encoded.semantic)
        if self.training:
            self._update_book(encoded.semantic.detach().float(), codes)
        book = self.book()[codes]
        commitment = F.mse_loss(encoded.semantic.float(), book)
        semantic = encoded.semantic + (book - encoded.semantic).detach()
        values = encoded.acoustic.float()
        drawn = PAST_NOISE * torch.randn(values.shape, generator=noise).to(values.device)
        past = torch.cat((semantic, values.detach() + drawn), dim=-1)
        expected = self.expectation(phonemes.clamp_min(0), past).float()
        known = (phonemes >= 0).all(dim=1)[:, None, None]  # rows; others have nothing to expect values from
        expected = torch.where(known, expected, values)
        expectation = F.mse_loss(expected, values.detach())
        expectation = expectation + PULL_WEIGHT * F.mse_loss(values, expected.detach())
        error = (expected - values).detach().square().mean((0, 1))
        unexplained = (error / values.detach().var((0, 1)).clamp_min(LEAST_VARIANCE)).mean()
        acoustic = self._dithered(values, noise)
        if self.training:
            half = len(samples) // 2
            acoustic = torch.cat((expected[:half], acoustic[half:]))
        found = self.decode(torch.cat((semantic, acoustic), dim=-1))
        used = torch.tensor(len(codes.unique()) / self.args.semantic_codebook_size)
        logits, unquantised = (
            self.phoneme_head(part).unflatten(-1, (SUBFRAMES, -1)).flatten(1, 2)
            for part in (semantic, encoded.semantic)
        )
        return Decoded(
            found, commitment, expectation, encoded.redundancy, unexplained, logits, unquantised, used
        )

    def feature_distance(self, found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """Mean distance of two sounds [B, n] by what the encoder's stages give, relative to its size.

        No gradient reaches the encoder.
        """
        frozen = {name: value.detach() for name, value in self.encoder.stages.named_parameters()}
        with torch.no_grad():
            theirs = self.encoder.stages(expected)
        ours = functional_call(self.encoder.stages, frozen, (found,))
        distances = [
            F.l1_loss(a.float(), b.float()) / b.float().abs().mean()
            for a, b in zip(ours, theirs, strict=True)
        ]
        return torch.stack(distances).mean()

    def book(self) -> torch.Tensor:
        """The semantic code book [codes, semantic_dim]."""
        return codebook_entries(self._book["embedding_sum"], self._book["cluster_usage"])

    def likeness(self, rows: int) -> torch.Tensor:
        """Targets [rows, rows] of semantic codes as published: each row has the code, and codes near it."""
        book = self.book()
        near = torch.softmax(-torch.cdist(book, book).square() / LIKENESS, dim=-1)
        found, codes = torch.eye(rows, device=book.device), slice(FIRST_CODE, FIRST_CODE + len(book))
        found[codes, codes] = near
        return found

    def nearest(self, semantic: torch.Tensor) -> torch.Tensor:
        """semantic [..., semantic_dim] -> int64 [...], entries of the book."""
        flat = semantic.detach().float().flatten(0, -2)
        return torch.cdist(flat[None], self.book()[None])[0].argmin(-1).view(semantic.shape[:-1])

    def codes(self, samples: torch.Tensor) -> torch.Tensor:
        """samples [B, T · 1920] -> int64 [B, T + 1, K], as published: specials counted.

        The first frame decodes to silence, and the last one to the last frame of the sound.
        """
        silent = (FRAME_SAMPLES, FRAME_SAMPLES)
        encoded = self.encoder(F.pad(samples, silent))
        top = self.args.acoustic_codebook_size - 1
        levels = ((encoded.acoustic.float() + 1) / 2 * top).round().long()
        codes = torch.cat((self.nearest(encoded.semantic)[..., None], levels), dim=-1)
        return codes[:, 1:] + FIRST_CODE

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        """latent [B, T, semantic_dim + A] -> samples [B, T · 1920]."""
        stages = list(self.weights.decoder_blocks)
        first, *others = parts_of(stages, ConvolutionWeights)
        layers = [parts_of(stage.modules(), CodecBlockWeights) for stage in stages]
        kernel = self.args.decoder_convs_kernels[0]
        x = _convolve(torch.cat((latent[:, :1].expand(-1, kernel - 1, -1), latent), dim=1), first)
        for stage, blocks in enumerate(blocks for blocks in layers if blocks):
            if stage:
                x = _upsample(x, others[stage - 1])
            for block in blocks:
                x = self._block(block, x, self.args.windows[stage] + 1)
        reflected = x[:, 1 : self.args.patch_proj_kernel_size].flip(1)
        return _convolve(torch.cat((reflected, x), dim=1), self.weights.output_proj).flatten(1).float()

    def _block(self, weights: CodecBlockWeights, x: torch.Tensor, window: int) -> torch.Tensor:
        attention = weights.attention
        q, k, v = (part.flatten(-2) for part in project(attention, weights.attention_norm(x)))
        q, k, v = (
            part.unflatten(-1, (-1, attention.head_dim))
            for part in (attention.q_norm(q), attention.k_norm(k), v)
        )
        attended = attend_window(q.to(v.dtype), k.to(v.dtype), v, window, self.slopes)
        x = x + weights.attention_scale * attention.wo(attended.flatten(-2))
        return x + weights.ffn_scale * feed_forward(weights.feed_forward, weights.ffn_norm(x))

    def _dithered(self, acoustic: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
        top = self.args.acoustic_codebook_size - 1
        rounded = acoustic + (((acoustic + 1) / 2 * top).round() * 2 / top - 1 - acoustic).detach()
        if not self.training:
            return rounded
        drawn = torch.rand(acoustic.shape, generator=noise).to(acoustic.device)
        is_rounded = (torch.rand(acoustic.shape[:2], generator=noise) < 0.5).to(acoustic.device)
        return torch.where(is_rounded[..., None], rounded, acoustic + (2 * drawn - 1) / top)

    @property
    def _book(self) -> nn.ParameterDict:
        book = self.weights.quantizer["semantic_codebook"]
        assert isinstance(book, nn.ParameterDict)
        return book

    @torch.no_grad()
    def _update_book(self, semantic: torch.Tensor, codes: torch.Tensor) -> None:
        """Moves the sums and counts of the entries towards the frames of a batch. Dead entries begin anew."""
        flat, codes = semantic.flatten(0, 1), codes.flatten()
        usage, sums = self._book["cluster_usage"], self._book["embedding_sum"]
        usage.mul_(BOOK_DECAY).index_add_(0, codes, torch.full_like(codes, 1 - BOOK_DECAY, dtype=usage.dtype))
        sums.mul_(BOOK_DECAY).index_add_(0, codes, flat * (1 - BOOK_DECAY))
        dead = torch.nonzero(usage < DEAD_USAGE).flatten()[: len(flat)]
        places = torch.linspace(0, len(flat) - 1, len(dead), device=flat.device).long()
        sums[dead], usage[dead] = flat[places] * NEW_USAGE, torch.full_like(usage[dead], NEW_USAGE)

    def _initialise_codec(self, seed: int) -> None:
        for name, parameter in self.weights.named_parameters():
            if name.endswith("_scale"):
                parameter.data.fill_(LAYER_SCALE)
            elif name.endswith("original0"):
                direction = self.weights.get_parameter(f"{name.removesuffix('0')}1")
                parameter.data.copy_(direction.detach().norm(dim=(1, 2), keepdim=True))
        for parameter in self._book.values():
            parameter.requires_grad_(False)
        self._book["cluster_usage"].data.fill_(0.0)  # the entries begin at frames of the first batches


def _delayed(x: torch.Tensor, frames: int) -> torch.Tensor:
    """x [B, T, D], later; the first frames are zeros."""
    return F.pad(x, (0, 0, frames, 0))[:, : x.shape[1]]


def _convolve(x: torch.Tensor, weights: ConvolutionWeights) -> torch.Tensor:
    """x with its left context [B, kernel - 1 + S, in] -> [B, S, out]."""
    return F.conv1d(x.mT, weights.fused()).mT


def _upsample(x: torch.Tensor, weights: ConvolutionWeights) -> torch.Tensor:
    """Transposed convolution of kernel 2 · stride, trimmed on the right: [B, S, in] -> [B, stride · S,
    out].
    """
    kernel = weights.fused()
    stride = kernel.shape[-1] // 2
    return F.conv_transpose1d(x.mT, kernel, stride=stride)[..., : stride * x.shape[1]].mT
