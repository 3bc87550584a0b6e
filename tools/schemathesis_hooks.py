"""Gives schemathesis recordings: half of the valid forms with a file get a recording of speech instead.

    SCHEMATHESIS_HOOKS=schemathesis_hooks PYTHONPATH=tools schemathesis run URL/openapi.json ...

Schemathesis is not among the dependencies.
"""

from itertools import count
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.transport.serialization import Binary

ROOT = Path(__file__).resolve().parents[1]
RECORDING = Binary((ROOT / "export" / "evaluation" / "held_out" / "held-out-000.opus").read_bytes())
FILES = ("file", "audio_sample")  # of a transcription, and of a voice
numbers = count()


def before_call(
    context: schemathesis.HookContext,
    case: schemathesis.Case,
    kwargs: dict[str, Any],  # Any: options of the HTTP client
) -> None:
    """Invalid forms stay: one with a number instead of a text is sent as text, and would be right."""
    is_valid = case.meta is not None and case.meta.generation.mode is schemathesis.GenerationMode.POSITIVE
    if is_valid and isinstance(case.body, dict):
        for name in FILES:
            if isinstance(case.body.get(name), Binary) and next(numbers) % 2:
                case.body[name] = RECORDING
                case._sync_validated_hashes()  # else a form with a file counts as changed, and as invalid


schemathesis.hook(before_call)
