"""Turns of speech: the model of Silero in numpy, and where turns begin and end."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.runtime.recordings import RATE, SENTENCE, sentences

from voxport.runtime.audio import turns
from voxport.runtime.audio.silero import CHUNK, SpeechProbability
from voxport.runtime.audio.turns import CHUNK_MS, TurnAudio, TurnDetector, TurnSettings, turns_of

DEFAULT = TurnSettings()
# of the sentence, by ONNX Runtime with silero_vad_16k_op15.onnx of silero-vad 6.2.3
FIRST = (0.016, 0.016, 0.018, 0.953, 0.985, 0.993, 0.996, 1.0)
LAST = (1.0, 1.0, 0.995, 0.695, 0.419, 0.098, 0.026, 0.015, 0.011, 0.012, 0.013, 0.013)


def found(samples: np.ndarray, settings: TurnSettings = DEFAULT, size: int = 4800) -> list[tuple[int, int]]:
    """Beginnings and ends of turns in ms, of a stream in blocks of `size` samples."""
    detector = TurnDetector(settings)
    blocks = [samples[start : start + size] for start in range(0, len(samples), size)]
    return boundaries([piece for block in blocks for piece in detector.feed(block)])


def boundaries(pieces: Sequence[TurnAudio]) -> list[tuple[int, int]]:
    starts = [piece.start_ms for piece in pieces if piece.start_ms is not None]
    ends = [piece.end_ms for piece in pieces if piece.end_ms is not None]
    return list(zip(starts, ends, strict=False))


@pytest.mark.parametrize("chunks", [1, 7, 92])
def test_probabilities_are_those_of_the_published_model(chunks: int) -> None:
    samples = np.load(SENTENCE)["samples"][: 92 * CHUNK].astype(np.float32) / 2**15
    model, size = SpeechProbability(), chunks * CHUNK
    got = np.concatenate([model.feed(samples[at : at + size]) for at in range(0, len(samples), size)])
    np.testing.assert_allclose([*got[:8], *got[80:]], FIRST + LAST, atol=0.003)


@pytest.mark.parametrize("size", [100, 512, 4800, 10**6])
def test_sentences_are_turns_whatever_the_size_of_the_blocks(size: int) -> None:
    assert found(sentences(2), size=size) == [(768, 4224), (4672, 8160)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (TurnSettings(prefix_padding_ms=0), [(1088, 4224), (4992, 8160)]),
        (TurnSettings(silence_duration_ms=200), [(768, 3936), (4672, 7872)]),
        (TurnSettings(silence_duration_ms=2000), []),  # no turn ends
        (TurnSettings(threshold=1.0), []),
    ],
)
def test_settings_are_those_of_openai(settings: TurnSettings, expected: list[tuple[int, int]]) -> None:
    assert found(sentences(2), settings) == expected


def test_the_audio_of_a_turn_is_the_stream_from_its_beginning_to_its_end() -> None:
    samples = sentences(2)
    for start_s, blocks in turns_of(np.array_split(samples, 50), DEFAULT):
        turn, start = np.concatenate(list(blocks)), round(start_s * RATE)
        np.testing.assert_array_equal(turn, samples[start : start + len(turn)])
        assert len(turn) > 3 * RATE


RANDOM, TIME = np.random.default_rng(0), np.arange(10 * RATE) / RATE


@pytest.mark.parametrize(
    "sound",
    [
        pytest.param(np.zeros(10 * RATE), id="silence"),
        pytest.param(RANDOM.normal(0, 0.1, 10 * RATE), id="noise"),
        pytest.param(RANDOM.normal(0, 0.05, 10 * RATE) * np.sin(TIME).clip(0), id="breath"),
        pytest.param((np.arange(10 * RATE) % 8000 == 0) * 1.0, id="clicks"),
        pytest.param(sum(0.1 * np.sin(2 * np.pi * hertz * TIME) for hertz in (220, 277, 330)), id="chord"),
    ],
)
def test_other_sounds_are_no_turns_and_hide_no_later_speech(sound: np.ndarray) -> None:
    assert found(sound.astype(np.float32)) == []
    after = np.concatenate((sound.astype(np.float32), sentences(1)))
    assert [start >= 10_000 for start, _ in found(after)] == [True]


def test_speech_in_noise_is_found() -> None:
    noisy = sentences(2) + RANDOM.normal(0, 0.02, len(sentences(2))).astype(np.float32)
    assert len(found(noisy)) == 2


def test_a_long_turn_ends_at_a_short_pause_and_an_endless_one_at_the_maximum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "LONG_TURN_S", 2.0)
    monkeypatch.setattr(turns, "MAX_TURN_S", 5.0)
    assert len(found(sentences(3, pause_s=0.15))) >= 2
    endless = np.tile(np.load(SENTENCE)["samples"][3000:43000].astype(np.float32) / 2**15, 5)
    (_, end), *_ = found(endless)
    assert end == pytest.approx(5000, abs=300)


def test_time_without_speech_gives_silent_turns() -> None:
    detector = TurnDetector(TurnSettings(idle_timeout_ms=2000))
    pieces = [piece for _ in range(100) for piece in detector.feed(np.zeros(800, np.float32))]
    assert boundaries(pieces) == [(0, 2016), (2016, 4032)] and all(piece.is_silent for piece in pieces)


class Level:
    """A model for which the probability of speech is the first sample of a chunk."""

    def feed(self, samples: np.ndarray) -> np.ndarray:
        return samples[::CHUNK]


def levels(*probabilities: float) -> np.ndarray:
    """Chunks without an offset, and 160 ms of silence, so that all are complete."""
    signs = np.where(np.arange(CHUNK) % 2, -1, 1)
    return np.outer([*probabilities, *[0] * 5], signs).astype(np.float32).ravel()


SHORT = TurnSettings(prefix_padding_ms=0, silence_duration_ms=96)  # three chunks of silence


@pytest.mark.parametrize(
    ("settings", "probabilities", "expected"),
    [
        pytest.param(SHORT, [0.6, 0, 0.6, 0, 0, 0], [], id="one chunk of speech is a click"),
        pytest.param(SHORT, [0.5, 0.5, 0, 0, 0, 0], [(0, 5)], id="silence counts from its first chunk"),
        pytest.param(SHORT, [0.5, 0.5, 0.36, 0.36, 0.36, 0.34, 0.34, 0.34], [(0, 8)], id="lower at the end"),
        pytest.param(
            replace(SHORT, threshold=0.9), [1, 1, 0.6, 0.6, 0.6], [(0, 5)], id="end of a high threshold"
        ),
        pytest.param(
            SHORT, [1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0], [(0, 5), (5, 11)], id="speech right after a turn"
        ),
        pytest.param(
            replace(SHORT, prefix_padding_ms=64), [0, 0, 0, 1, 1, 0, 0, 0], [(1, 8)], id="two chunks before"
        ),
        pytest.param(
            replace(SHORT, idle_timeout_ms=192),
            [0, 0, 0, 0, 0, 1, 1, 0, 0, 0],
            [(5, 10)],
            id="speech before a timeout",
        ),
        pytest.param(
            TurnSettings(silence_duration_ms=96, idle_timeout_ms=192),
            [0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0],
            [(0, 6), (6, 12)],
            id="a turn begins after a timeout",
        ),
    ],
)
def test_turns_follow_from_the_probabilities(
    monkeypatch: pytest.MonkeyPatch,
    settings: TurnSettings,
    probabilities: list[float],
    expected: list[tuple[int, int]],
) -> None:
    monkeypatch.setattr(turns, "SpeechProbability", Level)
    detector = TurnDetector(settings, position=RATE)
    found = boundaries(detector.feed(levels(*probabilities)))
    assert [((start - 1000) / CHUNK_MS, (end - 1000) / CHUNK_MS) for start, end in found] == expected


@pytest.mark.parametrize("discard", [TurnDetector.clear, TurnDetector.end_turn])
def test_audio_before_a_clear_or_a_commit_is_in_no_later_turn(
    monkeypatch: pytest.MonkeyPatch, discard: Callable[[TurnDetector], object]
) -> None:
    monkeypatch.setattr(turns, "SpeechProbability", Level)
    detector = TurnDetector(DEFAULT)
    detector.feed(levels())
    discard(detector)
    turn, *_ = detector.feed(levels(1, 1))
    assert len(turn.samples) == 2 * CHUNK


def test_audio_before_a_clear_does_not_stay_in_the_resampler() -> None:
    detector = TurnDetector(DEFAULT, 8000)
    detector.feed(np.full(8000, 0.1, np.float32))
    detector.clear()
    pieces = [*detector.feed(np.zeros(8000, np.float32)), *detector.end_turn()]
    samples = np.concatenate([piece.samples for piece in pieces])
    assert len(samples) == RATE and not samples.any()


def test_no_sample_is_lost_at_the_end_of_a_client() -> None:
    detector = TurnDetector(DEFAULT, 8000)
    pieces = [*detector.feed(np.zeros(8000, np.float32)), *detector.end_turn()]
    assert sum(len(piece.samples) for piece in pieces) == RATE


def test_a_client_can_end_a_turn_and_audio_without_speech() -> None:
    samples = sentences(1)
    detector = TurnDetector(DEFAULT)
    assert detector.feed(samples[: 2 * RATE])[0].start_ms == 768
    last = detector.end_turn()[-1]
    assert (last.start_ms, last.end_ms, detector.pending_s) == (None, 2000, 0)
    detector.feed(np.zeros(RATE, np.float32))
    assert detector.pending_s == 1
    (silent,) = detector.end_turn()
    assert (silent.start_ms, silent.end_ms, len(silent.samples)) == (2000, 3000, RATE) and silent.is_silent
    detector.feed(samples[: 2 * RATE])
    detector.clear()
    assert detector.pending_s == 0 and detector.feed(np.zeros(RATE, np.float32)) == []
