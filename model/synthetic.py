"""Synthetic Voxtral-TTS checkpoints: the published on-disk format with random weights, the same bytes for the same seed.

Scales are chosen so that a runner meets what it meets with real weights: codes change from frame to frame, the audio is
noise of moderate loudness, and a sentence ends by itself after some seconds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import NormalDist
from typing import Any, BinaryIO

import numpy as np
import torch

from model.checkpoint import WEIGHTS, expected_tensors
from model.errors import OutputError
from model.synthetic_sizes import SIZES
from model.synthetic_tokenizer import tekken
from model.voxtral_tts.components import build_root
from model.voxtral_tts.config import END_AUDIO, VoxtralTTSConfig, parse_config

CONTENT_VERSION = 2  # of the embedded checkpoint: raise it when its bytes change, so that caches are made anew
BLOCK = 1 << 22  # values generated at a time: 16 MB as float32, whatever the tensor's size
ITEM = 2  # bytes of a bfloat16
END_CHANCE = 0.08  # per frame, that END_AUDIO wins, were logits independent normals; as they are, sentences last 10 to 50 frames on average
AUDIO_GAIN = 0.15  # of the last convolution: audio of about 0.1 RMS
USAGE = 8.0  # mean of cluster_usage, far from zero at a spread of 1
TEXT_TABLE = "mm_audio_embeddings.tok_embeddings.weight"
SEMANTIC_HEAD = "acoustic_transformer.semantic_codebook_output.weight"
Shapes = dict[str, tuple[int, ...]]
log = logging.getLogger(__name__)


def write_checkpoint(out: Path, size: str = "tiny", seed: int = 0) -> None:
    """Writes params.json, consolidated.safetensors, tekken.json and voice_embedding/*.pt into `out`, a new or empty folder.

    Everything is made in a folder beside `out`, which is renamed at the end. Raises OutputError where `out` is not free,
    `size` is unknown, or the disk is too small.
    """
    if size not in SIZES:
        raise OutputError(f"size {size!r}: unknown, expected one of {', '.join(SIZES)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"{out}: exists and is not an empty folder; choose another folder")
    shapes = _shapes(size)
    needed = 8 + len(_header(shapes)) + _bytes_of(shapes) + 120 * SIZES[size].num_vocab_tokens
    try:
        with _folder_beside(out) as partial:
            free = shutil.disk_usage(partial).free
            if free < needed:
                raise OutputError(f"{out}: {size} needs {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free there; choose another disk")
            log.info("%s: %d tensors, %.1f MB", out, len(shapes), needed / 1e6)
            _write_files(partial, size, seed, shapes)
            if out.is_dir():  # empty, as seen above; not every system renames onto a folder
                out.rmdir()
            partial.rename(out)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {error.strerror or error}; choose another folder") from None


def embedded_default() -> Path:
    """The tiny checkpoint of seed 0, made on first use below $XDG_CACHE_HOME or ~/.cache, and again where it is broken."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "voxport"
    folder = cache / f"voxtral-tts-tiny-{CONTENT_VERSION}"
    while not _is_whole(folder):
        _put_aside(folder)
        try:
            write_checkpoint(folder)
        except OutputError:
            if not folder.is_dir():  # else another process was faster: look at what it made
                raise
    return folder


def _is_whole(folder: Path) -> bool:
    """Every file of the tiny checkpoint is there, the two that a run cannot do without in their full size."""
    shapes, params = _shapes("tiny"), folder / "params.json"
    weights, expected = folder / WEIGHTS, 8 + len(_header(shapes)) + _bytes_of(shapes)
    others = [folder / "tekken.json", *(folder / "voice_embedding" / f"{voice}.pt" for voice in SIZES["tiny"].voices)]
    return (
        params.is_file()
        and params.read_bytes() == _json(SIZES["tiny"].params())
        and weights.is_file()
        and weights.stat().st_size == expected
        and all(path.is_file() and path.stat().st_size for path in others)
    )


def _put_aside(folder: Path) -> None:
    """Removes a broken folder; renamed first, so that nobody meets it half removed."""
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.broken")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside)


@contextmanager
def _folder_beside(out: Path) -> Iterator[Path]:
    """A new hidden folder in `out`'s parent, so that renaming stays on one disk; removed if it is left where it is."""
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    partial.mkdir(parents=True)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_files(folder: Path, size: str, seed: int, shapes: Shapes) -> None:
    chosen, config = SIZES[size], _config(size)
    (folder / "params.json").write_bytes(_json(chosen.params()))
    codec, frame_rate = config.codec, config.audio.audio_encoding_args.frame_rate
    (folder / "tekken.json").write_bytes(_json(tekken(config.vocab_size, chosen.num_vocab_tokens, chosen.voices, codec.sampling_rate, frame_rate)))
    (folder / "voice_embedding").mkdir()
    for voice, rows in chosen.voices.items():
        _write_voice(folder / "voice_embedding", voice, rows, config.dim, seed)
    with (folder / WEIGHTS).open("wb") as file:
        _write_weights(file, config, seed, shapes)


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode("utf-8")


def _config(size: str) -> VoxtralTTSConfig:
    return parse_config(SIZES[size].params(), f"size {size}")


def _shapes(size: str) -> Shapes:
    return expected_tensors(build_root(_config(size)))


def _bytes_of(shapes: Shapes) -> int:
    return sum(ITEM * int(np.prod(shape)) for shape in shapes.values())


def _header(shapes: Shapes) -> bytes:
    """The JSON header of the safetensors format, padded with blanks to a multiple of 8 bytes as the format's library does."""
    entries, start = {}, 0
    for name, shape in shapes.items():
        end = start + ITEM * int(np.prod(shape))
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
        start = end
    header = json.dumps(entries, separators=(",", ":")).encode("ascii")
    return header + b" " * (-len(header) % 8)


def _write_weights(file: BinaryIO, config: VoxtralTTSConfig, seed: int, shapes: Shapes) -> None:
    """Header length (8 bytes, little-endian), header, raw tensors one after the other.

    Written here because the format's library writes from a dict of all tensors only: 8 GB of memory at the published size.
    """
    header = _header(shapes)
    file.write(struct.pack("<Q", len(header)) + header)
    for name, shape in shapes.items():
        if ITEM * np.prod(shape) > 100e6:
            log.info("%s %s", name, list(shape))
        for block in _values(name, shape, seed, config):
            file.write(block.view(torch.int16).numpy().astype("<i2", copy=False).tobytes())


def _values(name: str, shape: tuple[int, ...], seed: int, config: VoxtralTTSConfig) -> Iterator[torch.Tensor]:
    """The values of a tensor in bfloat16, flat, in blocks of whole rows. They depend on name, shape and seed alone."""
    rng = _generator(seed, name)
    mean, spread = _distribution(name, shape, config)
    row = int(np.prod(shape[1:]))
    step = max(1, BLOCK // row)
    for first in range(0, shape[0], step):
        values = rng.standard_normal((min(step, shape[0] - first), row), dtype=np.float32)
        values *= spread
        values += mean
        if name == SEMANTIC_HEAD and first == 0:
            values[END_AUDIO] = _end_row(values[END_AUDIO], seed, config)
        yield torch.from_numpy(values.reshape(-1)).to(torch.bfloat16)


def _generator(seed: int, name: str) -> np.random.Generator:
    """A stream of its own for each tensor: adding one changes no other."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(digest, "little")))


def _distribution(name: str, shape: tuple[int, ...], config: VoxtralTTSConfig) -> tuple[np.float32, np.float32]:
    """Mean and standard deviation of a tensor's values."""
    mean, spread = 0.0, shape[-1] ** -0.5  # a linear gives outputs of unit variance
    if name.endswith("norm.weight"):
        mean, spread = 1.0, 0.1
    elif name.endswith("_scale"):
        mean, spread = 0.5, 0.1
    elif name.endswith("original0"):  # the norm of a convolution's kernel; upsamplers add two taps of half the channels' energy
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
    elif name.endswith("audio_codebook_embeddings.embeddings.weight"):  # a frame, the sum of 37 rows, is as large as a text row
        spread = config.n_codebooks**-0.5
    elif name.startswith("layers.") and name.endswith(("wo.weight", "w2.weight")):  # depth must not drown a frame in its context
        spread *= (2 * config.n_layers) ** -0.5
    return np.float32(mean), np.float32(spread)


def _end_row(row: np.ndarray, seed: int, config: VoxtralTTSConfig) -> np.ndarray:
    """The END_AUDIO row of the semantic head: enlarged to win with END_CHANCE, and at right angles to the markers' embeddings.

    Frame 0 comes after [BEGIN_AUDIO] or [AUDIO], whose embedding is most of the hidden state there, whatever the text:
    without the second step some seeds would end every sentence before it began.
    """
    markers = [config.audio.audio_token_id, config.audio.begin_audio_token_id]
    beginning = (max(markers) + 1, config.dim)
    table = torch.cat(list(_values(TEXT_TABLE, beginning, seed, config))).reshape(beginning)
    basis, _ = np.linalg.qr(table[markers].double().numpy().T)  # [dim, 2]
    return (_end_scale(config) * (row - basis @ (basis.T @ row))).astype(np.float32)


def _end_scale(config: VoxtralTTSConfig) -> float:
    """How much larger the END_AUDIO row of the semantic head is, so that it wins with END_CHANCE.

    Logits are then about normal; the largest of n independent ones has its median where the tail is ln 2 / n.
    """
    normal = NormalDist()
    largest = -normal.inv_cdf(np.log(2) / config.audio.semantic_codebook_size)
    return largest / -normal.inv_cdf(END_CHANCE)


def _write_voice(folder: Path, voice: str, rows: int, dim: int, seed: int) -> None:
    """A bare bfloat16 tensor [rows, dim], as large as text rows. Saved as `voice_embed`, which names the archive's root as published."""
    values = _generator(seed, f"voice_embedding/{voice}").standard_normal((rows, dim), dtype=np.float32)
    saved = folder / "voice_embed.pt"
    torch.save(torch.from_numpy(values).to(torch.bfloat16), saved)
    saved.rename(folder / f"{voice}.pt")
