"""Synthetic Voxtral-TTS checkpoints: random weights that make a runner behave as with real ones.

Codes change from frame to frame, the audio is noise of moderate loudness, and a sentence ends after some
seconds.
"""

from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from model.family import Distribution, Synthetic
from model.mistral_format import PARAMS, TOKENIZER, WEIGHTS
from model.synthetic.checkpoint import generator, plain_distribution, values
from model.synthetic.tokenizer import tekken
from model.voxtral_tts.config import END_AUDIO, VoxtralTTSConfig, parse_config
from model.voxtral_tts.format import VOICES
from model.voxtral_tts.sizes import SIZES

CONTENT_VERSION = 2
SPECIALS = {
    24: "[AUDIO]",
    25: "[BEGIN_AUDIO]",
    26: "[OUTPUT_AUDIO]",
    34: "[TRANSCRIBE]",  # unused for synthesis, yet mistral_common opens no tokenizer of speech without it
    35: "[REPEAT_AUDIO_TEXT]",
    36: "[NEXT_AUDIO_TEXT]",
}
# Probability of END_AUDIO per frame if logits were independent normals. In fact a sentence has 10 to 50
# frames on average.
END_CHANCE = 0.08
AUDIO_GAIN = 0.15  # of the last convolution: audio of about 0.1 RMS
USAGE = 8.0  # mean of cluster_usage, far from zero at a spread of 1
TEXT_TABLE = "mm_audio_embeddings.tok_embeddings.weight"
SEMANTIC_HEAD = "acoustic_transformer.semantic_codebook_output.weight"


def _tekken(size: str) -> dict[str, Any]:
    chosen = SIZES[size]
    config = parse_config(chosen.params(), f"size {size}")
    audio = {
        "sampling_rate": config.codec.sampling_rate,
        "frame_rate": config.audio.audio_encoding_args.frame_rate,
        "audio_encoding_config": {
            "num_mel_bins": 128,
            "hop_length": 160,
            "window_size": 400,
        },  # unused for speech synthesis
        "voice_num_audio_tokens": chosen.voices,
    }
    return tekken(config.vocab_size, chosen.num_vocab_tokens, SPECIALS, audio)


def _distribution(name: str, shape: tuple[int, ...], config: VoxtralTTSConfig) -> Distribution:
    """Mean and standard deviation of a tensor's values."""
    mean, spread = plain_distribution(name, shape)
    if name.endswith("_scale"):
        mean, spread = 0.5, 0.1
    elif name.endswith(
        "original0"
    ):  # the norm of a convolution's kernel; upsamplers add two taps of half the channels' energy
        mean = AUDIO_GAIN if ".output_proj." in name else 1.0
        spread = mean / 10
    elif name.endswith("original1"):  # only its direction matters
        spread = 1.0
    elif name.endswith("cluster_usage"):
        mean, spread = USAGE, 1.0
    elif name.endswith("embedding_sum"):  # entries as large as the acoustic values of uniform levels
        spread = USAGE * 3**-0.5
    elif name == TEXT_TABLE:
        spread = 1.0
    elif name.endswith(
        "audio_codebook_embeddings.embeddings.weight"
    ):  # a frame, the sum of 37 rows, is as large as a text row
        spread = config.n_codebooks**-0.5
    elif name.startswith("layers.") and name.endswith(
        ("wo.weight", "w2.weight")
    ):  # keeps deep layers from outweighing the new frame
        spread *= (2 * config.n_layers) ** -0.5
    return np.float32(mean), np.float32(spread)


def _adjust(name: str, first: int, rows: np.ndarray, seed: int, config: VoxtralTTSConfig) -> None:
    if name == SEMANTIC_HEAD and first == 0:
        rows[END_AUDIO] = _end_row(rows[END_AUDIO], seed, config)


def _end_row(row: np.ndarray, seed: int, config: VoxtralTTSConfig) -> np.ndarray:
    """The END_AUDIO row of the semantic head, enlarged to win with END_CHANCE, orthogonal to the markers.

    The embedding of [BEGIN_AUDIO] or [AUDIO] is most of the hidden state of frame 0, for any text. Without
    orthogonality some seeds would end every sentence at frame 0.
    """
    markers = [config.audio.audio_token_id, config.audio.begin_audio_token_id]
    beginning = (max(markers) + 1, config.dim)
    table = torch.cat(list(values(SYNTHETIC, TEXT_TABLE, beginning, seed, config))).reshape(beginning)
    basis, _ = np.linalg.qr(table[markers].double().numpy().T)  # [dim, 2]
    end: np.ndarray = _end_scale(config) * (row - basis @ (basis.T @ row))
    return end.astype(np.float32)


def _end_scale(config: VoxtralTTSConfig) -> float:
    """How much larger the END_AUDIO row of the semantic head is, so that it wins with END_CHANCE.

    Logits are then about normal; the largest of n independent ones has its median where the tail is ln 2 / n.
    """
    normal = NormalDist()
    largest = -normal.inv_cdf(np.log(2) / config.audio.semantic_codebook_size)
    return largest / -normal.inv_cdf(END_CHANCE)


def _write_voices(folder: Path, size: str, seed: int) -> None:
    (folder / VOICES).mkdir()
    dim = parse_config(SIZES[size].params()).dim
    for voice, rows in SIZES[size].voices.items():
        _write_voice(folder / VOICES, voice, rows, dim, seed)


def _write_voice(folder: Path, voice: str, rows: int, dim: int, seed: int) -> None:
    """A bare bfloat16 tensor [rows, dim], as large as text rows.

    Saved as `voice_embed`, which names the archive's root as published.
    """
    found = generator(seed, f"voice_embedding/{voice}").standard_normal((rows, dim), dtype=np.float32)
    saved = folder / "voice_embed.pt"
    torch.save(torch.from_numpy(found).to(torch.bfloat16), saved)
    saved.rename(folder / f"{voice}.pt")


SYNTHETIC = Synthetic(
    version=CONTENT_VERSION,
    sizes=tuple(SIZES),
    config_file=PARAMS,
    config=lambda size: SIZES[size].params(),
    documents=lambda size: {TOKENIZER: _tekken(size)},
    weight_files={WEIGHTS: ""},
    distribution=_distribution,
    adjust=_adjust,
    write_extra_files=_write_voices,
    extra_files=lambda size: [f"{VOICES}/{voice}.pt" for voice in SIZES[size].voices],
)
