"""Layouts of Voxtral-TTS checkpoints: Mistral's with a folder of voices, and mlx-audio's. Import no torch."""

from __future__ import annotations

import zipfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxport.bundle.bounds import MAX_VOICE_BYTES, MAX_VOICE_ROWS
from voxport.bundle.errors import CheckpointError
from voxport.bundle.manifest import VOICE_KEY
from voxport.bundle.tekken import SPEECH_MARKERS
from voxport.model.download import unfinished
from voxport.model.mistral_layout import PARAMS, TOKENIZER, MistralLayout
from voxport.model.mlx.layout import MlxLayout
from voxport.model.voxtral_tts.config import VoxtralTTSConfig

if TYPE_CHECKING:
    import torch

VOICES = "voice_embedding"
REMEDY = "fetch the file again"


class VoxtralTTSLayout(MistralLayout[VoxtralTTSConfig]):
    """`voice_embedding/NAME.pt` holds the rows of a voice, or in a folder of mlx-audio `NAME.safetensors`."""

    config_class = VoxtralTTSConfig
    folders = (VOICES,)
    has_voices = True

    def control_ids(self, config: VoxtralTTSConfig) -> dict[str, int]:
        audio = config.audio
        return {"[AUDIO]": audio.audio_token_id, "[BEGIN_AUDIO]": audio.begin_audio_token_id}

    def voice_files(self, folder: Path) -> list[str]:
        paths = sorted(path for path in (folder / VOICES).glob("*") if path.suffix in READERS)
        for first, second in pairwise(sorted(paths, key=lambda path: path.stem)):
            if first.stem == second.stem:
                raise CheckpointError(
                    f"{first}: the voice {first.stem} also has the file {second.name}, expected one; "
                    "remove one of them"
                )
        return [f"{VOICES}/{path.name}" for path in paths]

    def voice(self, path: Path, config: VoxtralTTSConfig) -> torch.Tensor:
        return _load_voice(path, config.dim)

    def voice_names(self, config: VoxtralTTSConfig) -> list[str]:
        return sorted(config.codec.voice)


def _load_voice(path: Path, dim: int) -> torch.Tensor:
    """Rows [N, dim] of a voice, as stored. Raises CheckpointError with the file's path.

    Weights-only loading executes nothing in the file.
    """
    import torch

    if not path.is_file():  # opening a pipe would wait for ever
        raise CheckpointError(f"{path}: not a file; {REMEDY}")
    if reason := unfinished(path):
        raise CheckpointError(f"{path}: {reason}")
    expected = f"expected one tensor [N, {dim}] of float32, float16 or bfloat16, N at most {MAX_VOICE_ROWS}"
    try:
        if (size := _unpacked_bytes(path)) > MAX_VOICE_BYTES:
            raise ValueError(f"{size} bytes, at most {MAX_VOICE_BYTES} make sense")
        rows = READERS[path.suffix](path)
    except Exception as error:  # torch raises many kinds; each means that the file is damaged or not a tensor
        reason = _first_line(error)
        raise CheckpointError(f"{path}: not readable as a tensor ({reason}), {expected}; {REMEDY}") from None
    if not isinstance(rows, torch.Tensor):
        raise CheckpointError(f"{path}: holds a {type(rows).__name__}, {expected}; {REMEDY}")
    is_plain = not rows.is_nested and rows.layout is torch.strided and not rows.is_meta
    if not is_plain or rows.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        kind = "nested" if rows.is_nested else f"{rows.layout}, on {rows.device}"
        raise CheckpointError(f"{path}: holds a tensor of {rows.dtype}, {kind}, {expected}; {REMEDY}")
    if rows.dim() != 2 or not 1 <= rows.shape[0] <= MAX_VOICE_ROWS or rows.shape[1] != dim:
        raise CheckpointError(f"{path}: holds a tensor of shape {list(rows.shape)}, {expected}; {REMEDY}")
    if not rows.float().isfinite().all():  # what is exported: float32
        raise CheckpointError(f"{path}: holds values that are not finite in float32, {expected}; {REMEDY}")
    return rows.detach()


def _read_pickle(path: Path) -> Any:
    import torch

    return torch.load(path, map_location="cpu", weights_only=True)


def _read_safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path)[VOICE_KEY]


READERS = {".pt": _read_pickle, ".safetensors": _read_safetensors}


def _unpacked_bytes(path: Path) -> int:
    """Bytes that reading the file takes. torch unpacks compressed archives of any size."""
    if not zipfile.is_zipfile(path):
        return path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        return sum(entry.file_size for entry in archive.infolist())


def _first_line(error: Exception) -> str:
    """The first line of a message: the rest of torch's messages is advice to its own users."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")[:120]


BACKBONE = "language_model.model.model"
LAYER = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


class VoxtralTTSMlx(MlxLayout[VoxtralTTSConfig]):
    """mlx-audio (0.6): names of the backbone as in Hugging Face's Llama, other names as published.

    Convolutions of the codec are stored as published: mlx-audio takes their weight norms in that layout.
    """

    has_tokenizer, has_voices = True, True
    model_type = "voxtral_tts"
    renames = (
        *((f"layers.*.{name}.", f"{BACKBONE}.layers.*.{other}.") for name, other in LAYER.items()),
        ("norm.", f"{BACKBONE}.norm."),
        ("mm_audio_embeddings.tok_embeddings.", f"{BACKBONE}.embed_tokens."),
        ("mm_audio_embeddings.audio_codebook_embeddings.", "audio_codebook_embeddings."),
    )
    integers = ("layers.*", "acoustic_transformer.*", "mm_audio_embeddings.tok_embeddings")
    copied = (PARAMS, TOKENIZER)
    published_config = PARAMS  # mlx-audio reads the same content


MISTRAL = VoxtralTTSLayout("audio_model_args", SPEECH_MARKERS)
LAYOUTS = (MISTRAL, VoxtralTTSMlx(MISTRAL))
