"""Speech of bundles: seeds, chunks, several texts, threads, limits, and `say` in pieces."""

import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from support.paths import ROOT
from support.runtime.opened_tasks import open_speech

from voxport.bundle.errors import UsageError

TEXT = "Hello there, this is a sentence."


def test_the_same_seed_gives_similar_speech_on_two_targets(bundles: Path) -> None:
    pieces = {
        target: np.concatenate(list(open_speech(bundles / target).speak(TEXT, seed=7)))
        for target in ("onnx", "executorch")
    }
    again = np.concatenate(list(open_speech(bundles / "onnx").speak(TEXT, seed=7)))
    np.testing.assert_array_equal(pieces["onnx"], again)
    other = np.concatenate(list(open_speech(bundles / "onnx").speak(TEXT, seed=8)))
    assert not np.array_equal(other[:1920], again[:1920])
    # The two targets quantise activations differently, and their codes diverge with time. The first frame has
    # no history yet.
    first = [audio[:1920] for audio in pieces.values()]
    assert np.corrcoef(*first)[0, 1] > 0.9


@pytest.mark.parametrize("chunk", [1, 2, 5, 1000])
def test_the_chunk_size_does_not_change_the_speech(bundles: Path, chunk: int) -> None:
    task = open_speech(bundles / "executorch")
    whole = np.concatenate(list(task.speak(TEXT, seed=3)))
    pieces = list(task.speak(TEXT, seed=3, chunk_frames=chunk))
    assert all(len(piece) == chunk * 1920 for piece in pieces[:-1])
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


TEXTS = [
    "Hello there.",
    "Another one, and a longer one at that.",
    "A third.",
    "Four of them now.",
    "And a fifth waits until one is done.",
]


def collected(pieces: Iterable[tuple[int, np.ndarray]], count: int) -> list[np.ndarray]:
    found: list[list[np.ndarray]] = [[] for _ in range(count)]
    for index, samples in pieces:
        found[index].append(samples)
    return [np.concatenate(each) for each in found]


def test_batched_texts_sound_like_each_text_spoken_separately(bundles: Path) -> None:
    task = open_speech(bundles / "onnx")
    separate = [np.concatenate(list(task.speak(text, seed=4, max_frames=3))) for text in TEXTS]
    batched = collected(task.speak_all(TEXTS, seed=4, max_frames=3), len(TEXTS))
    assert [len(samples) for samples in batched] == [len(samples) for samples in separate]
    # Another order of sums may change a code. The first frame has no history yet and identifies its text.
    correlation = np.corrcoef([samples[:1920] for samples in (*batched, *separate)])[
        : len(TEXTS), len(TEXTS) :
    ]
    assert (correlation.argmax(axis=1) == range(len(TEXTS))).all() and (correlation.diagonal() > 0.9).all()


@pytest.mark.parametrize("target", ["onnx", "executorch", "coreml", "coreai"])
def test_texts_in_one_slot_are_bit_identical_to_each_text_spoken_separately(
    bundles: Path, target: str
) -> None:
    """Texts follow each other in one slot: with an engine of batch size 1, or with `slots=1`."""
    task = open_speech(bundles / target)
    separate = [np.concatenate(list(task.speak(text, seed=4, max_frames=2))) for text in TEXTS[:3]]
    found = collected(task.speak_all(TEXTS[:3], seed=4, max_frames=2, slots=1 if target == "onnx" else 4), 3)
    for batched, expected in zip(found, separate, strict=True):
        np.testing.assert_array_equal(batched, expected)


def test_slots_of_a_batched_stream_have_separate_states(bundles: Path) -> None:
    task: Any = open_speech(bundles / "onnx")
    stream = task.engine.batched(3)
    rows = {name: np.full_like(array, 2.0) for name, array in stream.slot(0).save("prefill", 4).items()}
    for index in range(3):
        stream.slot(index).load(rows)
    stream.slot(1).reset()
    kept = [
        max(float(array.max()) for array in stream.slot(index).save(positions=4).values())
        for index in range(3)
    ]
    assert kept == [2.0, 0.0, 2.0]
    dim = stream.signatures["prefill"].inputs[0].shape[-1]
    inputs = {"embeddings": np.zeros((3, 2, dim), np.float32), "position": np.zeros(3, np.int64)}
    with pytest.raises(UsageError, match="prefill: one call serves at most 1"):
        stream.run("prefill", inputs)


def test_invalid_texts_are_refused_before_the_first_samples(bundles: Path) -> None:
    task = open_speech(bundles / "onnx")
    wrong: tuple[tuple[Any, str], ...] = (
        ([], "no text; expected a list"),
        ("One.", "one str; expected a list"),
        (["Fine.", " "], "text 1: .*nothing to speak"),
        (["Fine.", None], "text 1: .*expected a str"),
    )
    for texts, message in wrong:
        with pytest.raises(UsageError, match=message):
            next(iter(task.speak_all(texts)))
    for name, value in (("slots", 0), ("max_frames", 0), ("chunk_frames", 0), ("seed", -1)):
        option: dict[str, Any] = {name: value}
        with pytest.raises(UsageError, match=f"{name} {value}: expected (an int of )?at least"):
            next(iter(task.speak_all(["Fine."], **option)))


@pytest.mark.parametrize("target", ["onnx", "executorch", "coreml", "coreai"])
def test_threads_that_share_a_task_do_not_affect_each_other(bundles: Path, target: str) -> None:
    """The threads share one bundle and its weights, and speak at the same time."""
    task = open_speech(bundles / target)

    def spoken(seed: int) -> np.ndarray:
        return np.concatenate(list(task.speak(TEXT, seed=seed, chunk_frames=1, max_frames=4)))

    separate = [spoken(seed) for seed in (1, 2, 3)]
    with ThreadPoolExecutor(3) as pool:
        for batched, expected in zip(pool.map(spoken, (1, 2, 3)), separate, strict=True):
            np.testing.assert_array_equal(batched, expected)


def test_say_writes_the_same_samples_to_a_file_and_to_stdout(bundles: Path, tmp_path: Path) -> None:
    say = [sys.executable, "-m", "runtime", "say", TEXT, "--bundle", str(bundles / "onnx")]
    base = [*say, "--seed", "7", "--voice", "fr_male"]
    streamed = subprocess.run(
        [*base, "--stream", "--chunk-frames", "2"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    subprocess.run([*base, "-o", str(tmp_path / "a.wav")], cwd=ROOT, check=True, capture_output=True)
    samples, rate = soundfile.read(tmp_path / "a.wav", dtype="int16")
    assert rate == 24000
    np.testing.assert_array_equal(np.frombuffer(streamed, "<i2"), samples)


def test_say_speaks_a_sentence_while_the_next_one_arrives(bundles: Path) -> None:
    """Samples come before stdin is closed; all of them equal those of the whole text."""
    text = (
        "This sentence is long enough to be spoken before the next one is complete. And this is the next one."
    )
    base = [sys.executable, "-m", "voxport.runtime", "say", "--bundle", str(bundles / "onnx"), "--stream"]
    process = subprocess.Popen([*base, "-"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    timer = threading.Timer(240, process.kill)  # a command that waits for the end of stdin
    timer.start()
    process.stdin.write(text[:85].encode())
    process.stdin.flush()
    first = process.stdout.read(2 * 1920)
    assert len(first) == 2 * 1920
    process.stdin.write(text[85:].encode())
    process.stdin.close()
    streamed = first + process.stdout.read()
    timer.cancel()
    whole = subprocess.run([*base, text], cwd=ROOT, check=True, capture_output=True).stdout
    assert process.wait() == 0 and streamed == whole


def test_a_language_that_the_model_does_not_speak_is_refused(bundles: Path) -> None:
    task = open_speech(bundles / "onnx")
    assert [task.check_language(each) for each in ("fr-CA", "english", "auto")] == ["fr", "en", None]
    with pytest.raises(UsageError, match="'ff': this model does not have it; it has auto, en, fr"):
        next(task.speak(TEXT, language="ff"))
