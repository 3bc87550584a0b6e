"""Teacher-forced code agreement: the same history for both, then count the codes that are equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from export.checks import Context
from export.compare import Fact, relative_distance
from runtime.engines.base import Stream
from runtime.voxtral_tts import FIRST_CODE, Constants, Frame, Speaker

FRAMES = 40
PROMPT = 16


def utterance(make: Stream, constants: Constants, first_frame: str, forced: np.ndarray | None) -> tuple[list[Frame], np.ndarray]:
    """Frames of a fixed prompt and fixed noise; `forced` codes [F, K] are fed back instead of the stream's own."""
    generator = np.random.default_rng(5)
    speaker = Speaker(make, constants, first_frame)
    ids = np.concatenate(([constants.bos_id, constants.begin_audio_id], generator.integers(0, constants.vocab_size, PROMPT)))
    ids = ids[ids != constants.audio_id]
    speaker.prefill(ids, np.zeros((0, constants.dim), np.float32))
    frames = []
    for index in range(FRAMES):
        frames.append(speaker.frame(generator.standard_normal((1, constants.n_codebooks - 1), dtype=np.float32)))
        if index + 1 < FRAMES:
            speaker.step(frames[-1].codes if forced is None else forced[index : index + 1])
    return frames, np.concatenate([frame.codes for frame in frames])


def agreement(context: Context, constants: Constants, first_frame: str) -> tuple[Iterable[Fact], dict[str, Any]]:
    """Lowering: semantic equal wherever the margin exceeds the error, acoustic within one level. Quantisation: reported."""
    reference, codes = utterance(context.eager(), constants, first_frame, None)
    frames, found = utterance(context.artifact(), constants, first_frame, codes)
    excused, wrong = 0, 0
    for own, other in zip(frames, reference, strict=True):
        if own.codes[0, 0] != other.codes[0, 0]:
            error = float(np.abs(own.semantic_logits - other.semantic_logits).max())
            excused, wrong = (excused + 1, wrong) if _margin(other, constants) <= 2 * error else (excused, wrong + 1)
    levels = np.abs(found[:, 1:] - codes[:, 1:])
    facts = [
        Fact("semantic codes, teacher-forced", wrong == 0, f"{FRAMES - excused - wrong} of {FRAMES} equal, {excused} within the error's margin"),
        Fact("acoustic codes, teacher-forced", bool(levels.max() <= 1), f"{(levels == 0).mean():.2%} equal, largest difference {levels.max()} level"),
    ]
    report: dict[str, Any] = {"frames": FRAMES, "lowering": _equal(found, codes)}
    if context.full:
        full_frames, full_codes = utterance(context.full(), constants, first_frame, codes)
        report["quantisation"] = _equal(codes, full_codes)
        report["quantisation"]["hidden_distance"] = float(
            np.median([relative_distance(a.hidden, b.hidden) for a, b in zip(reference, full_frames, strict=True)])
        )
    return facts, report


def _margin(frame: Frame, constants: Constants) -> float:
    live = np.sort(frame.semantic_logits[1 : FIRST_CODE + constants.semantic_codes])
    return float(live[-1] - live[-2])


def _equal(found: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    same = found == expected
    return {"semantic_equal": float(same[:, 0].mean()), "acoustic_equal": float(same[:, 1:].mean())}
