"""Teacher-forced code agreement: the same history for both, then count the codes that are equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from export.checks import Context
from export.compare import Fact, relative_distance
from runtime.engines.base import Stream
from runtime.voxtral_tts import FIRST_CODE, Constants, Outlook, Speaker

FRAMES = 40
PROMPT = 16


def utterance(stream: Stream, constants: Constants, first_frame: str, forced: np.ndarray | None) -> tuple[list[Outlook], np.ndarray]:
    """Outlooks and codes [F, K] of a fixed prompt and fixed noise; `forced` codes are fed back instead of the stream's own.

    With forced codes the graphs run one after the other, not in turns: see `OneGraph`.
    """
    generator = np.random.default_rng(5)
    ids = np.concatenate(([constants.bos_id, constants.begin_audio_id], generator.integers(0, constants.vocab_size, PROMPT)))
    ids = ids[ids != constants.audio_id]
    noise = generator.standard_normal((FRAMES, 1, constants.n_codebooks - 1), dtype=np.float32)
    speaker = Speaker(stream, constants, first_frame)
    embedded = [] if forced is None else [speaker.embed(row[None]) for row in forced]
    speaker.prefill(ids, np.zeros((0, constants.dim), np.float32))
    outlooks, codes = [speaker.outlook], []
    for index in range(FRAMES - 1):
        if forced is None:
            codes.append(speaker.frame(noise[index]))
        speaker.step(speaker.embed(codes[-1]) if forced is None else embedded[index])
        outlooks.append(speaker.outlook)
    codes += [speaker.frame(noise[index], outlooks[index]) for index in range(len(codes), FRAMES)]
    return outlooks, np.concatenate(codes)


def agreement(context: Context, constants: Constants, first_frame: str) -> tuple[Iterable[Fact], dict[str, Any]]:
    """Lowering: semantic equal wherever the margin exceeds the error, acoustic within one level. Quantisation: reported."""
    reference, codes = utterance(context.eager(), constants, first_frame, None)
    outlooks, found = utterance(context.artifact(), constants, first_frame, codes)
    excused, wrong = 0, 0
    for own, other, same in zip(outlooks, reference, found[:, 0] == codes[:, 0], strict=True):
        if not same:
            error = float(np.abs(own.semantic_logits - other.semantic_logits).max())
            excused, wrong = (excused + 1, wrong) if _margin(other, constants) <= 2 * error else (excused, wrong + 1)
    levels = np.abs(found[:, 1:] - codes[:, 1:])
    facts = [
        Fact("semantic codes, teacher-forced", wrong == 0, f"{FRAMES - excused - wrong} of {FRAMES} equal, {excused} within the error's margin"),
        Fact("acoustic codes, teacher-forced", bool(levels.max() <= 1), f"{(levels == 0).mean():.2%} equal, largest difference {levels.max()} level"),
    ]
    report: dict[str, Any] = {"frames": FRAMES, "lowering": _equal(found, codes)}
    if context.full:
        full_outlooks, full_codes = utterance(context.full(), constants, first_frame, codes)
        distances = [relative_distance(own.hidden, full.hidden) for own, full in zip(reference, full_outlooks, strict=True)]
        report["quantisation"] = _equal(codes, full_codes) | {"hidden_distance": float(np.median(distances))}
    return facts, report


def _margin(outlook: Outlook, constants: Constants) -> float:
    live = np.sort(outlook.semantic_logits[1 : FIRST_CODE + constants.semantic_codes])
    return float(live[-1] - live[-2])


def _equal(found: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    same = found == expected
    return {"semantic_equal": float(same[:, 0].mean()), "acoustic_equal": float(same[:, 1:].mean())}
