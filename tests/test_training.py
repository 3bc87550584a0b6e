"""The training recipe: its data, its passes, which equal the exported modules, and what it writes."""

import ctypes
import json
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.export.rounding import float32_bar
from torch import nn

from tools.training.data.clips import Clip, Shard, read_shard, start_shard
from tools.training.data.espeak import (
    LIBRARY,
    PHONEMES,
    SAMPLE_RATE,
    Event,
    Utterance,
    phoneme_classes,
    word_ends,
)
from tools.training.data.sound import at_speed, in_band, in_room, log_mel, samples_of
from tools.training.data.tokens import BYTES, Encoder, learn_tokens, tekken_document
from tools.training.data.wordnet import FOLDER
from tools.training.loop import Muon, Schedule, Trainer
from tools.training.recognition import streams
from tools.training.recognition.model import LONGEST_DELAY, VOCAB_SIZE, RecognitionModel, trained_params
from tools.training.recognition.streams import IGNORED, SCHEDULE, fed_and_targets, make_batch, stream_tokens
from tools.training.speech.batches import NO_WORD, words_of_tokens, words_spoken
from tools.training.speech.codec_model import CodecModel
from tools.training.speech.model import REFERENCE_FRAMES, SpeechModel, TrainedSpeech, trained_config
from tools.training.speech.sound_batches import make_sounds, subframe_phonemes
from tools.training.writing import write_recognition, write_speech
from voxport.bundle.tekken import load_tekken
from voxport.model.checkpoint import Checkpoint, expected_tensors
from voxport.model.families import open_family
from voxport.model.voxtral_realtime.config import Options as RecognitionOptions
from voxport.model.voxtral_realtime.config import VoxtralRealtimeConfig
from voxport.model.voxtral_realtime.modules import Decoder
from voxport.model.voxtral_realtime.modules import Encoder as AudioEncoder
from voxport.model.voxtral_tts.modules import AcousticStep, Backbone, CodeEmbedding
from voxport.runtime.audio.mel import LogMel, MelSettings

PAD, WORD, SECOND = SCHEDULE.pad_id, SCHEDULE.word_id, SAMPLE_RATE
TEXTS = ["The cat sat on the mat.", "A cat and the hat.", "That is the hat."] * 5
TOKENS = learn_tokens(TEXTS, 290)
SPELLED = Encoder(BYTES)
LENGTH = 40  # tokens, beyond the window of the encoder


@pytest.mark.parametrize(
    ("text", "starts", "pauses", "ends"),
    [
        ("one two three", [(0, 0), (100, 4), (250, 8)], [], (100, 250, 400)),
        ("one, two", [(0, 0), (300, 5)], [(120, 3)], (120, 400)),  # at the pause behind it
        ("on the wall", [(0, 0), (90, 7)], [], (90, 90, 400)),  # spoken as one word
        ("it is", [(0, 0), (80, 1)], [], (400, 400)),  # an event inside another word
    ],
)
def test_ends_of_words_follow_from_the_events_of_espeak(
    text: str, starts: list[tuple[int, int]], pauses: list[tuple[int, int]], ends: tuple[int, ...]
) -> None:
    events = [Event(sample, None, offset) for sample, offset in starts]
    events += [Event(sample, "_", offset) for sample, offset in pauses]
    assert word_ends(text, sorted(events), 400) == ends


def _decoded(tokens: list[bytes], ids: list[int]) -> str:
    return b"".join(tokens[token - SCHEDULE.first_text_id] for token in ids).decode()


def test_ids_are_those_of_the_published_tokenizer(tmp_path: Path) -> None:
    assert TOKENS[256] == b"at", "the most frequent pair is merged first"
    (tmp_path / "tekken.json").write_text(json.dumps(tekken_document(TOKENS, {24: "[AUDIO]"}, {})))
    tekken = load_tekken(tmp_path / "tekken.json")
    for text in (*TEXTS[:3], "the unseen héllo 12", "  two  blanks"):
        assert Encoder(TOKENS).encode(text) == tekken.encode(text, bos=False, eos=False)


def test_a_word_comes_when_due_and_the_prompt_has_no_targets() -> None:
    words = [streams.DueWord(2, [1001, 1002], (0.0, 2.0)), streams.DueWord(3, [1003], (2.0, 3.0))]
    words += [streams.DueWord(9, [1004], (8.0, 9.0)), streams.DueWord(11, [1005])]
    tokens, heard = stream_tokens(words, 12)
    assert [place for place in heard if place != streams.NOWHERE] == [2.0, 0.5, 1.5, 3.0, 2.5, 9.0, 8.5]
    assert tokens == [PAD, PAD, WORD, 1001, 1002, WORD, 1003, PAD, PAD, WORD, 1004, PAD]
    fed, targets = fed_and_targets(tokens, prompt=3)
    assert fed == [SCHEDULE.bos_id, PAD, PAD, *tokens[2:-1]] and targets == [IGNORED, IGNORED, *tokens[2:]]


def _clip() -> Clip:
    """1 s: `k` from 0.1 s, a pause from 0.8 s. `Hi` ends at 0.4 s and `you.` at 0.8 s."""
    samples = (8000 * np.sin(np.arange(SECOND) / 20)).astype(np.int16)
    phonemes = (("k", SECOND // 10), ("_", 8 * SECOND // 10))
    return Clip(Utterance("Hi you.", samples, (4 * SECOND // 10, 8 * SECOND // 10), phonemes), "a")


def test_batches_follow_from_their_seed_and_stand_at_their_times() -> None:
    first, again, other = (make_batch([_clip()], SPELLED, seed, 2) for seed in ("1", "1", "2"))
    assert all(torch.equal(*pair) for pair in zip(vars(first).values(), vars(again).values(), strict=True))
    assert not torch.equal(first.samples, other.samples)
    for targets in first.targets.tolist():
        begin = targets.index(WORD) + 1
        assert _decoded(BYTES, targets[begin : begin + 3]) == " Hi"
    sounds = make_sounds([_clip()], "0", 3, 30)
    loud = sounds.samples.reshape(3, 120, -1).abs().amax(-1) > 0.01
    assert loud[sounds.phonemes == PHONEMES.index("k")].all()
    assert subframe_phonemes(_clip(), 0, 60) == [0] * 5 + [PHONEMES.index("k")] * 35 + [0] * 20  # 20 ms each
    assert words_spoken(_clip(), 13).tolist() == [0] * 5 + [1] * 5 + [2] * 3
    assert words_of_tokens("é a", [1, 1, 1, 1]) == [0, 0, 1, 1], "lengths are in bytes"


def test_a_diphthong_is_two_sounds_and_a_mark_is_none() -> None:
    samples = np.zeros(1000, np.int16)
    phonemes = (("ˈ", 0), ("a", 100), ("ː", 200), ("aɪ", 300), ("?", 700), ("_", 900))
    found = phoneme_classes(Utterance("", samples, (), phonemes), np.arange(-50, 1050, 100))
    assert "".join(PHONEMES[each][0] for each in found) == "__aaaaɪɪoo_"  # o: other


def test_disturbances_keep_what_they_promise() -> None:
    rng, rate = np.random.default_rng(0), 16000
    times = np.arange(rate) / rate
    low, middle = (np.sin(2 * np.pi * hertz * times).astype(np.float32) for hertz in (100, 1000))
    found = in_band(low + middle, 300, 3400)
    np.testing.assert_allclose(found[2000:-2000], middle[2000:-2000], atol=0.01)  # the ends are steps
    click = np.zeros(rate, np.float32)
    click[1000] = 1
    echo = in_room(click, 0.3, 0.5, rng) - click
    assert np.square(echo).sum() == pytest.approx(0.5, rel=1e-3), "the share of the power"
    assert not echo[:1080].round(6).any() and not echo[1000 + 3 * rate // 10 :].round(6).any()
    heard = at_speed(_clip(), 1.25)
    assert len(samples_of(heard, rate)) == pytest.approx(len(samples_of(_clip(), rate)) / 1.25, abs=1)


def test_a_clip_without_times_teaches_sound_only() -> None:
    clip = Clip(Utterance("Hi you.", _clip().utterance.samples, (), ()), "a")
    assert set(make_sounds([clip], "0", 1, 5).phonemes.flatten().tolist()) <= {0, IGNORED}
    assert words_spoken(clip, 3).tolist() == [NO_WORD] * 3


def _is_installed() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


@pytest.mark.skipif(  # not in CI, where .ci/run installs it
    not (_is_installed() and FOLDER.exists()) and "CI" not in os.environ,
    reason="libespeak-ng1 or wordnet-base is not installed; only training needs them",
)
def test_a_shard_depends_on_its_name_only() -> None:
    first, again, other = map(read_shard, [start_shard(Shard(index, clips=3)) for index in (4, 4, 5)])
    for one, two in zip(first, again, strict=True):
        assert one.utterance.text == two.utterance.text and one.utterance.words == two.utterance.words
        assert np.array_equal(one.utterance.samples, two.utterance.samples)
        assert list(one.utterance.words) == sorted(one.utterance.words)
        assert one.utterance.words[0] > 0 and one.utterance.words[-1] <= len(one.utterance.samples)
    assert first[0].utterance.text != other[0].utterance.text


def _run(folder: Path, steps: int) -> Trainer:
    torch.manual_seed(0)
    inner = nn.ModuleDict({"attention": nn.ModuleDict({"wq": nn.Linear(4, 4)})})  # trained with Muon
    model: Any = nn.ModuleDict({"block": inner, "out": nn.Linear(4, 2)})  # the others with AdamW

    def losses(step: int) -> dict[str, torch.Tensor]:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        return {"loss": model["out"](model["block"]["attention"]["wq"](x)).square().mean()}

    trainer = Trainer(model, folder, "model", Schedule(steps, warmup=1))
    trainer.run(losses, save_every=1, log_every=1)
    assert [json.loads(line)["step"] for line in trainer.log_path.read_text().splitlines()] == [
        *range(1, steps + 1)
    ]
    return trainer


def test_the_optimiser_steps_as_that_of_torch() -> None:
    """`torch.optim.Muon` multiplies in bfloat16: 15 products, each rounded to 2^-9 of its values."""
    start = torch.randn(24, 16)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    expected = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    found = Muon([ours], 0.1)
    for _ in range(3):
        ours.grad = theirs.grad = torch.randn(24, 16)
        found.step()
        expected.step()
    moved = float((theirs - start).norm())
    assert float((ours - theirs).norm()) <= 15 * 2**-9 * moved < moved / 10


def test_a_run_that_was_interrupted_ends_in_the_same_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _run(tmp_path / "whole", 2)
    interrupted = _run(tmp_path / "parts", 1)
    before = interrupted.path.read_bytes()

    def fail(state: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(torch, "save", fail)
        interrupted.save()
    assert interrupted.path.read_bytes() == before
    with interrupted.log_path.open("a") as file:
        file.write('{"step": 2, "loss": 1.0}\n{"step": 3, "lo')  # after the checkpoint, and cut short
    parts = _run(tmp_path / "parts", 2)
    saved = [torch.load(trainer.path, weights_only=True) for trainer in (whole, parts)]
    for key in ("model", "average"):
        assert all(torch.equal(saved[0][key][name], value) for name, value in saved[1][key].items())
    assert len(parts.optimisers) == 2


def test_a_stage_does_not_go_on_if_an_earlier_one_did(tmp_path: Path) -> None:
    model = _run(tmp_path, 1).model
    with pytest.raises(FileExistsError, match=r"remove it to\s+train anew"):
        Trainer(model, tmp_path, "model", Schedule(2), {"codec": 5})


@pytest.fixture(scope="module")
def recognition() -> RecognitionModel:
    return RecognitionModel(VoxtralRealtimeConfig.model_validate(trained_params())).eval()


@pytest.fixture(scope="module")
def speech() -> SpeechModel:
    return SpeechModel(trained_config()).eval()


def assert_equal(found: torch.Tensor, expected: torch.Tensor, blocks: int, width: int) -> None:
    """Both add in another order: 8 sums in each block and 2 outside, of at most `width` products."""
    bar = float32_bar(8 * blocks + 2, width) * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=bar)


def _caches(args: Any, rows: int) -> list[torch.Tensor]:
    return [torch.zeros(1, rows, args.n_kv_heads, args.head_dim) for _ in range(2 * args.n_layers)]


@torch.no_grad()
def test_the_passes_of_recognition_are_the_exported_ones(recognition: RecognitionModel) -> None:
    config, mel = recognition.config, torch.randn(1, 8 * LENGTH, 128)
    found = recognition.embed(recognition.encode(mel))
    encoder = AudioEncoder(RecognitionModel(config).weights.audio, config)
    states = [torch.zeros(1, 2, 128), torch.zeros(1, 1, config.encoder.dim)]
    states += _caches(config.encoder, config.encoder.sliding_window + 4 * LENGTH)
    expected, *_ = encoder(mel[0].unflatten(0, (LENGTH, 8))[None], torch.tensor([0]), *states)
    assert_equal(found[0], expected[0], config.encoder.n_layers, config.encoder.hidden_dim)
    audio, tokens = torch.randn(2, LENGTH, config.dim), torch.randint(0, config.vocab_size, (2, LENGTH))
    found, _ = recognition.decode(audio, tokens, torch.tensor([6, LONGEST_DELAY]))
    options = RecognitionOptions(delay_ms="480,2400")
    decoder = Decoder(RecognitionModel(config).weights, config, options, LENGTH)
    for row in range(2):
        x = audio[row] + recognition.weights.audio.tok_embeddings(tokens[row])
        _, last, *_ = decoder(x[None], torch.tensor([0]), torch.tensor([row]), *_caches(config, LENGTH))
        assert_equal(found[row, -1], last[0], config.n_layers, config.hidden_dim)


@torch.no_grad()
def test_the_passes_of_speech_are_the_exported_ones(speech: SpeechModel) -> None:
    config = speech.config
    ids, is_code = torch.randint(0, config.vocab_size, (1, LENGTH)), torch.rand(1, LENGTH) < 0.5
    codes = torch.randint(2, 22, (1, LENGTH, config.n_codebooks))
    found = speech.normed(speech.states(speech.embed(ids, codes, is_code))[-1])
    tables = speech.weights.mm_audio_embeddings
    frames = CodeEmbedding(tables.get_submodule("audio_codebook_embeddings.embeddings"), config.code_offsets)
    rows = torch.cat([frames(one[None]) for one in codes[0]], dim=1)
    x = torch.where(is_code[0][None, :, None], rows, tables["tok_embeddings"](ids))
    backbone = Backbone(SpeechModel(config).weights, config, LENGTH)
    hidden, logits, _, *_ = backbone(x, torch.tensor([0]), *_caches(config, LENGTH))
    assert_equal(found[0], hidden[0], config.n_layers, config.hidden_dim)
    assert_equal(speech.semantic(found[0, -1]), logits[0], config.n_layers, config.hidden_dim)
    head, step = SpeechModel(config).weights.acoustic_transformer, torch.arange(5)
    x, state = torch.randn(5, config.audio.n_acoustic_codebook), torch.randn(5, config.dim)
    _, velocity = AcousticStep(head, config.acoustic.dim, 7)(x, step, head.llm_projection(state))
    for index, condition in enumerate((state, torch.zeros_like(state))):
        found = speech.velocity(x, step / 7, condition)
        assert_equal(found, velocity[:, index], config.acoustic.n_layers, config.acoustic.hidden_dim)


def test_log_mel_frames_are_those_of_the_runtime() -> None:
    samples = np.random.default_rng(0).standard_normal(16000, dtype=np.float32) * 0.1
    runtime = LogMel(MelSettings(16000, 128, 400, 160, -6.5))
    expected = np.concatenate((runtime.feed(samples), runtime.finish()))
    bar = 10 * 2 / (4 * np.log(10)) * float32_bar(2, 400)  # the scale of a frame is log10 / 4
    np.testing.assert_allclose(log_mel(torch.from_numpy(samples)[None])[0], expected, rtol=0, atol=bar)


def _trainer(model: nn.Module, folder: Path, name: str) -> Trainer:
    trainer = Trainer(model, folder, name, Schedule(0))
    trainer.record({"loss": 1.0})
    return trainer


def _write_recognition(folder: Path) -> None:
    fillers = (b"%c%c" % (first, second) for first in range(65, 128) for second in range(65, 128))
    tokens = [*BYTES, *islice(fillers, VOCAB_SIZE - 1256)]
    model = RecognitionModel(VoxtralRealtimeConfig.model_validate(trained_params()))
    write_recognition(folder / "out", model, tokens, _trainer(model, folder, "r"))


def _write_speech(folder: Path) -> None:
    model = SpeechModel(trained_config())
    codec = CodecModel(model.config.codec)
    voices = [torch.full((REFERENCE_FRAMES + 1, model.config.n_codebooks), code) for code in (2, 3)]
    trainers = [_trainer(codec, folder, "c"), _trainer(model, folder, "s")]
    write_speech(folder / "out", TrainedSpeech(model, codec, voices), trainers)


@pytest.mark.parametrize(
    ("name", "write"), [("voxtral_realtime", _write_recognition), ("voxtral_tts", _write_speech)]
)
def test_what_is_written_is_a_complete_checkpoint(
    name: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path)
    family, out = open_family(name), tmp_path / "out"
    checkpoint = Checkpoint(family.layout.weight_files(out))
    expected = expected_tensors(family.build_root(family.layout.load_config(out)))
    assert {tensor: checkpoint.shape(tensor) for tensor in checkpoint.names} == expected
    assert checkpoint.size <= 20e6
    load_tekken(out / "tekken.json")
    assert "Apache-2.0" in (out / "README.md").read_text()


@pytest.mark.parametrize("name", ["voxtral_tts", "voxtral_realtime"])
def test_a_command_refuses_to_write_what_is_not_trained(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, module = tmp_path / "out", f"tools.training.{name}"
    monkeypatch.setattr(sys, "argv", [name, "write", "--folder", str(tmp_path / "state"), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        import_module(module).main()
    message = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2 and re.search("train (it|the codec) first", message) and not out.exists()
