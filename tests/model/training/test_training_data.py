"""Data of the training recipe: streams with their tokens, sounds with their phonemes, shards of espeak-ng."""

import ctypes
import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from voxport.model.training.data.clips import Clip, Shard, read_shard, start_shard
from voxport.model.training.data.espeak import LIBRARY, SAMPLE_RATE, Utterance
from voxport.model.training.data.phonemes import phoneme_class
from voxport.model.training.data.sound import NOISE_SMOOTHING, with_noise
from voxport.model.training.data.tokens import Encoder
from voxport.model.training.recognition.streams import DELAYS, IGNORED, PHONEME_LAG, SCHEDULE, make_batch
from voxport.model.training.speech.batches import IGNORED as UNCHOSEN
from voxport.model.training.speech.batches import (
    NO_WORD,
    Spoken,
    make_sequences,
    reference_codes,
    with_wrong_frames,
    words_of_tokens,
    words_spoken,
)
from voxport.model.training.speech.codec_model import SUBFRAMES
from voxport.model.training.speech.sound_batches import FRAME_SAMPLES, make_sounds, subframe_phonemes

BYTES = Encoder([bytes([byte]) for byte in range(256)])
SECOND = SAMPLE_RATE


def _clip() -> Clip:
    """1 s: `k` from 0.1 s, a pause from 0.8 s. `Hi` ends at 0.4 s and `you.` at 0.8 s."""
    samples = (8000 * np.sin(np.arange(SECOND) / 20)).astype(np.int16)
    phonemes = (("k", SECOND // 10), ("_:", 8 * SECOND // 10))
    return Clip(Utterance("Hi you.", samples, (4 * SECOND // 10, 8 * SECOND // 10), phonemes), 0, SECOND)


def test_a_stream_emits_each_word_its_delay_after_the_word_ended() -> None:
    batch = make_batch([_clip()], BYTES, "0", 12)
    assert set(batch.delay.tolist()) <= set(DELAYS) and len(set(batch.delay.tolist())) > 1
    rows = zip(batch.phonemes.tolist(), batch.targets.tolist(), batch.delay.tolist(), strict=True)
    for phonemes, targets, delay in rows:
        first = targets.index(SCHEDULE.word_id)
        assert BYTES.decode(targets[first + 1 : first + 4]) == " Hi"
        begun = 20 * phonemes.index(phoneme_class("k")) - 1000 * PHONEME_LAG  # ms of `k`, within a frame
        ended = begun + 300
        assert abs(first - delay - ended / 80) < 1 + 20 / 80, "in the token in which the word ends"
        assert targets[: targets.count(IGNORED)] == [IGNORED] * targets.count(IGNORED)


def test_equal_arguments_give_equal_streams() -> None:
    first, again, other = (make_batch([_clip()], BYTES, seed, 2) for seed in ("1", "1", "2"))
    assert all(torch.equal(*pair) for pair in zip(vars(first).values(), vars(again).values(), strict=True))
    assert not torch.equal(first.samples, other.samples)


def test_phonemes_stand_at_their_times() -> None:
    found = subframe_phonemes(_clip(), 0, 60)  # 20 ms each
    assert found == [0] * 5 + [phoneme_class("k")] * 35 + [0] * 20


@pytest.mark.parametrize("smoothing", NOISE_SMOOTHING)
def test_noise_is_as_far_below_the_speech_as_asked_for(smoothing: float) -> None:
    rng = np.random.default_rng(0)
    speech, noise = rng.standard_normal((2, 16000), dtype=np.float32) * np.float32(0.1)
    added = with_noise(speech, noise, smoothing, 20) - speech
    assert 10 * np.log10(np.mean(speech**2) / np.mean(added**2)) == pytest.approx(20, abs=0.01)
    neighbours = np.corrcoef(added[1:], added[:-1])[0, 1]
    assert neighbours == pytest.approx(smoothing, abs=0.05)


def test_sounds_are_full_of_sentences_with_a_phoneme_per_subframe() -> None:
    batch = make_sounds([_clip()], "0", 3, 30)
    assert batch.samples.shape == (3, 30 * FRAME_SAMPLES) and batch.phonemes.shape == (3, 30 * SUBFRAMES)
    loud = batch.samples.reshape(3, -1, FRAME_SAMPLES // SUBFRAMES).abs().amax(-1) > 0.01
    assert loud[batch.phonemes == phoneme_class("k")].all()


def test_sentences_of_a_batch_are_padded_on_the_right_without_targets() -> None:
    frames = [torch.randint(2, 20, (length, 3)) for length in (15, 20)]
    spoken = [Spoken("Hi", voice, codes, torch.zeros(len(codes))) for voice, codes in enumerate(frames)]
    voices = reference_codes(spoken, 2, 12)
    assert [len(voice) for voice in voices] == [13, 13] and voices[0][-1].tolist() == [1, 0, 0]
    batch = make_sequences(spoken, voices, BYTES, "0", 8)
    chosen = (batch.targets != UNCHOSEN).sum(1)
    assert set(chosen.tolist()) == {16, 21}, "every frame and the end"
    assert (batch.targets[chosen == 16][:, -5:] == UNCHOSEN).all()
    assert not batch.is_code[chosen == 16][:, -5:].any()


def test_each_frame_reads_the_word_that_it_speaks() -> None:
    words = words_spoken(_clip(), 13)
    assert words.tolist() == [0] * 5 + [1] * 5 + [2] * 3, "words end at 0.4 and 0.8 s"
    spoken = [Spoken("Hi you.", 0, torch.randint(2, 20, (13, 3)), words)]
    batch = make_sequences(spoken, [torch.full((4, 3), 5)], BYTES, "0", 1)
    ids, word_of, reads = batch.ids[0].tolist(), batch.word_of[0].tolist(), batch.reads[0].tolist()
    text = ids.index(36) + 1  # after [NEXT_AUDIO_TEXT]
    assert word_of[text : text + 8] == [0, 0, 1, 1, 1, 1, 1, 2] and ids[text + 7] == 35, "and the token after"
    assert set(word_of[:text] + word_of[text + 8 :]) == {NO_WORD}
    assert reads[-14:] == [*words.tolist(), 2], "of the frame that a position chooses; the last one the end"
    assert set(reads[:-14]) == {NO_WORD}


def test_tokens_belong_to_words_whatever_their_pieces() -> None:
    assert words_of_tokens("Hi you.", [2, 4, 1]) == [0, 1, 1]
    assert words_of_tokens("é a", [1, 1, 1, 1]) == [0, 0, 1, 1], "lengths are in bytes"


def test_wrong_frames_replace_some_that_are_fed_back() -> None:
    """Those of prompts and of padding stay, and the same noise gives the same frames."""
    codes = torch.arange(4 * 60 * 3).reshape(4, 60, 3)
    is_frame = torch.zeros(4, 60, dtype=torch.bool)
    is_frame[:, 20:55] = True
    fed, again = (with_wrong_frames(codes, is_frame, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(fed, again)
    changed = (fed != codes).any(-1)
    assert not changed[~is_frame].any()
    assert 0.05 < changed[is_frame].float().mean() < 0.5
    known = {tuple(row) for row in codes[is_frame].tolist()}
    assert {tuple(row) for row in fed[is_frame].tolist()} <= known


def _is_installed() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


reason = "libespeak-ng1 is not installed; only training needs it. CI installs it"
needs_espeak = pytest.mark.skipif(not _is_installed(), reason=reason)


@needs_espeak
def test_a_shard_depends_on_its_name_only() -> None:
    started = [start_shard(Shard(index, clips=3)) for index in (4, 4, 5)]
    first, again, other = map(read_shard, started)
    for one, two in zip(first, again, strict=True):
        assert one.utterance.text == two.utterance.text and one.utterance.words == two.utterance.words
        assert np.array_equal(one.utterance.samples, two.utterance.samples)
    assert first[0].utterance.text != other[0].utterance.text
    for clip in first:
        ends = clip.utterance.words
        assert len(ends) == len(clip.utterance.text.split()) and list(ends) == sorted(ends)
        assert ends[0] > 0 and ends[-1] <= len(clip.utterance.samples)


@pytest.mark.parametrize("module", ["voxtral_tts", "voxtral_realtime", "data.clips"])
def test_each_command_has_help(module: str) -> None:
    command = [sys.executable, "-m", f"voxport.model.training.{module}", "--help"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--seed" in found and (module == "data.clips" or found.count("--folder STATE") >= 3)


@needs_espeak
def test_a_shard_is_whole_after_its_process_was_stopped_and_continued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A write to a full pipe is cut short where the process is stopped."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    process = start_shard(Shard(0, clips=8))
    assert process.stdout is not None
    filled = struct.pack("i", fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ))
    while fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)) != filled:
        assert process.poll() is None, "the shard fits in the pipe"
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    process.send_signal(signal.SIGCONT)
    assert len(read_shard(process)) == 8


@pytest.mark.parametrize(
    ("name", "stage", "says"),
    [
        ("voxtral_realtime", "evaluate", "train it first"),
        ("voxtral_realtime", "write", "train it first"),
        ("voxtral_tts", "evaluate", "train the codec first"),
        ("voxtral_tts", "write", "train the codec first"),
    ],
)
def test_a_stage_without_a_trained_model_is_one_line(
    name: str,
    stage: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = import_module(f"voxport.model.training.{name}")
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", [name, stage, "--folder", str(tmp_path / "state"), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2 and says in capsys.readouterr().err.splitlines()[-1] and not out.exists()
