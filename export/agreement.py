"""Whole utterances: teacher-forced code agreement, and what two models make of the same prompt and noise when each runs free."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from export.checks import Context
from export.compare import TIE_BAR, TIES, Fact, relative_distance
from runtime.engines.base import Stream
from runtime.voxtral_tts import EMPTY_AUDIO, END_AUDIO, FIRST_CODE, Constants, Outlook, Speaker

PROMPT = 16
MEL_BINS, MEL_WINDOW, MEL_HOP = 80, 1024, 256
Reports = dict[str, dict[str, float]]


def _prompt(constants: Constants, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Fixed ids [P] without voice rows, and fixed noise [frames, 1, K - 1]."""
    generator = np.random.default_rng(5)
    ids = np.concatenate(([constants.bos_id, constants.begin_audio_id], generator.integers(0, constants.vocab_size, PROMPT)))
    return ids[ids != constants.audio_id], generator.standard_normal((frames, 1, constants.n_codebooks - 1), dtype=np.float32)


def _begun(stream: Stream, constants: Constants, frames: int) -> tuple[Speaker, np.ndarray]:
    ids, noise = _prompt(constants, frames)
    speaker = Speaker(stream, constants)
    speaker.prefill(ids, np.zeros((0, constants.dim), np.float32))
    return speaker, noise


def teacher_forced(stream: Stream, constants: Constants, frames: int, forced: np.ndarray | None = None) -> tuple[list[Outlook], np.ndarray]:
    """Outlooks and codes [frames, K] of the utterance; `forced` codes are fed back instead of the stream's own.

    With forced codes the graphs run one after the other, not in turns: see `OneGraph`.
    """
    embedder = Speaker(stream, constants)
    embedded = [] if forced is None else [embedder.embed(row[None]) for row in forced]
    speaker, noise = _begun(stream, constants, frames)
    outlooks, codes = [speaker.outlook], []
    for index in range(frames - 1):
        if forced is None:
            codes.append(speaker.frame(noise[index]))
        speaker.step(speaker.embed(codes[-1]) if forced is None else embedded[index])
        outlooks.append(speaker.outlook)
    codes += [speaker.frame(noise[index], outlooks[index]) for index in range(len(codes), frames)]
    return outlooks, np.concatenate(codes)


def free_running(stream: Stream, constants: Constants, frames: int) -> np.ndarray:
    """Samples of the utterance up to END_AUDIO or so many frames, each code fed back."""
    speaker, noise = _begun(stream, constants, frames)
    codes: list[np.ndarray] = []
    for index in range(frames):
        found = speaker.frame(noise[index])
        if found[0, 0] == END_AUDIO:
            break
        codes.append(found[0])
        speaker.step(speaker.embed(found))
    return speaker.decode(np.array(codes, dtype=np.int64).reshape(-1, constants.n_codebooks))


def agreement(context: Context, constants: Constants, reports: Reports) -> Iterable[Fact]:
    """Lowering: the semantic code is equal wherever its margin exceeds what the bars let two logits move; the acoustic within
    one level. What quantisation does goes into `reports`.

    With integer activations a tie may move all logits of a frame, and then each by the bar of a worst call of their root mean
    square, or by `TIES` times what another order of sums moves them. One such order alone may happen upon no tie.
    """
    frames = context.extent.spoken
    reference, codes = teacher_forced(context.eager(), constants, frames)
    _, found = teacher_forced(context.artifact(), constants, frames, codes)
    error = max(context.float_bar * float(np.abs(_live(outlook, constants)).max()) for outlook in reference)
    if context.is_integer("decode_step"):
        moved, _ = teacher_forced(context.reordered(), constants, frames, codes)
        pairs = zip(moved, reference, strict=True)
        error = max(error, TIES * max(float(np.abs(_live(a, constants) - _live(b, constants)).max()) for a, b in pairs))
        error = max(error, TIE_BAR * max(float(np.sqrt(np.square(_live(outlook, constants)).mean())) for outlook in reference))
    different = found[:, 0] != codes[:, 0]
    excused = [bool(other) and _margin(outlook, constants) <= 2 * error for outlook, other in zip(reference, different, strict=True)]
    levels = np.abs(found[:, 1:] - codes[:, 1:])
    yield Fact(
        "semantic codes, teacher-forced",
        int(different.sum()) == sum(excused),
        f"{frames - int(different.sum())} of {frames} equal, {sum(excused)} of the others nearer to a tie than {2 * error:.1e},"
        f" as {sum(_margin(outlook, constants) <= 2 * error for outlook in reference)} of all are",
    )
    yield Fact("acoustic codes, teacher-forced", bool(levels.max() <= 1), f"{(levels == 0).mean():.2%} equal, largest difference {levels.max()} level")
    reports["codes, artifact and eager"] = _equal(found, codes)
    if context.full:
        full_outlooks, full_codes = teacher_forced(context.full(), constants, frames, codes)
        distances = [relative_distance(own.hidden, full.hidden) for own, full in zip(reference, full_outlooks, strict=True)]
        reports["codes, eager and full precision"] = _equal(codes, full_codes) | {"hidden_distance": float(np.median(distances))}


def end_to_end(context: Context, constants: Constants, reports: Reports, full_in_turns: bool) -> Iterable[Fact]:
    """Duration and log-mel distance of free runs: the artifact's from eager's, and eager's from full precision's.

    The latter where full precision can be called in turns, graph by graph: see `OneGraph`. It goes into `reports`, fails nothing.
    """
    frames = context.extent.spoken
    eager = free_running(context.eager(), constants, frames)
    artifact = free_running(context.artifact(), constants, frames)
    finite = bool(np.isfinite(artifact).all()) and bool(len(artifact)) >= bool(len(eager))
    yield Fact("free run", finite, f"{len(artifact) / constants.sample_rate:.2f} s of finite samples" if finite else "no sample, or one that is no number")
    if finite:
        reports["free run, artifact and eager"] = _sound(artifact, eager, constants)
    if context.full and full_in_turns:
        reports["free run, eager and full precision"] = _sound(eager, free_running(context.full(), constants, frames), constants)


def _live(outlook: Outlook, constants: Constants) -> np.ndarray:
    """Logits among which the code is chosen."""
    return outlook.semantic_logits[EMPTY_AUDIO + 1 : FIRST_CODE + constants.semantic_codes]


def _margin(outlook: Outlook, constants: Constants) -> float:
    second, first = np.sort(_live(outlook, constants))[-2:]
    return float(first - second)


def _equal(found: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    same = found == expected
    return {"semantic_equal": float(same[:, 0].mean()), "acoustic_equal": float(same[:, 1:].mean())}


def _sound(found: np.ndarray, expected: np.ndarray, constants: Constants) -> dict[str, float]:
    """Seconds of both, and the distance of what both have."""
    shared = min(len(found), len(expected))
    seconds = {"seconds": len(found) / constants.sample_rate, "seconds_expected": len(expected) / constants.sample_rate}
    if shared < MEL_WINDOW:
        return seconds
    difference = _log_mel(found[:shared], constants.sample_rate) - _log_mel(expected[:shared], constants.sample_rate)
    return seconds | {"log_mel_distance_db": float(np.sqrt(np.square(difference).mean(axis=0)).mean())}


def _log_mel(samples: np.ndarray, rate: int) -> np.ndarray:
    """Decibels [mel bins, windows] of the power spectrum under a Hann window."""
    from mistral_common.audio import mel_filter_bank

    filters = mel_filter_bank(MEL_WINDOW // 2 + 1, MEL_BINS, 0.0, rate / 2, rate)
    windows = np.lib.stride_tricks.sliding_window_view(samples, MEL_WINDOW)[::MEL_HOP] * np.hanning(MEL_WINDOW)
    power = np.square(np.abs(np.fft.rfft(windows, axis=-1)))
    return 10 * np.log10(np.maximum(power @ filters, 1e-10)).T
