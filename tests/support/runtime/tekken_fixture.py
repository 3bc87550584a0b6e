"""A small tekken.json in the published form: 256 bytes, a few merges, the speech markers, two voices."""

import base64
import json
from pathlib import Path
from typing import Any

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MERGES = ("he", "ll", "hell", "hello", " hello", "é", "th", "the", "12", "  ", "[A", "AU")
DROPPED = ("lo", "o ")  # behind default_vocab_size, so never to be used
FIRST = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
)
SECOND = (
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)
MARKERS = dict(enumerate(FIRST + SECOND))  # every one that mistral_common looks up in a v7 file
MARKERS |= {
    24: "[AUDIO]",
    25: "[BEGIN_AUDIO]",
    26: "[OUTPUT_AUDIO]",
    35: "[REPEAT_AUDIO_TEXT]",
    36: "[NEXT_AUDIO_TEXT]",
    34: "[TRANSCRIBE]",
}
SPECIALS = 1000
VOICES = {"calm": 3, "bright": 7}


def tekken() -> dict[str, Any]:
    pieces = [bytes([value]) for value in range(256)] + [piece.encode() for piece in MERGES + DROPPED]
    return {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(pieces),
            "default_vocab_size": SPECIALS + len(pieces) - len(DROPPED),
            "default_num_special_tokens": SPECIALS,
            "version": "v7",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
            for rank, piece in enumerate(pieces)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": MARKERS.get(rank, f"<SPECIAL_{rank}>"), "is_control": True}
            for rank in range(40)
        ],
        "audio": {
            "sampling_rate": 24000,
            "frame_rate": 12.5,
            "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400},
            "voice_num_audio_tokens": VOICES,
        },
    }


def write_tekken(folder: Path, content: Any = None) -> Path:
    """FOLDER/tekken.json of `content`, by default of `tekken()`."""
    path = folder / "tekken.json"
    path.write_text(json.dumps(tekken() if content is None else content), encoding="utf-8")
    return path
