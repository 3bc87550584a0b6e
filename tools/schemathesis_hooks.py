"""Gives schemathesis what it does not find: recordings of speech, and ids of stored voices to delete.

Half of the valid forms with a file have a recording. Half of the deletions have the id of a voice that was
made.

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
numbers, voices = count(), list[str]()


def before_call(
    context: schemathesis.HookContext,
    case: schemathesis.Case,
    kwargs: dict[str, Any],  # Any: options of the HTTP client
) -> None:
    """Invalid forms stay: one with a number instead of a text is sent as text, and would be right."""
    is_valid = case.meta is not None and case.meta.generation.mode is schemathesis.GenerationMode.POSITIVE
    if not is_valid or next(numbers) % 2:
        return
    if case.method == "DELETE" and voices:
        case.path_parameters["voice"] = voices.pop()
    elif isinstance(case.body, dict):
        for name in FILES:
            if isinstance(case.body.get(name), Binary):
                case.body[name] = RECORDING
                case._sync_validated_hashes()  # else a form with a file counts as changed, and as invalid


def after_call(
    context: schemathesis.HookContext, case: schemathesis.Case, response: schemathesis.Response
) -> None:
    if case.method == "POST" and case.path.endswith("/voices") and response.status_code == 200:
        voices.append(response.json()["id"])


schemathesis.hook(before_call)
schemathesis.hook(after_call)
