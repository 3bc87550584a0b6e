"""The training recipe: sentences, alignment, tokens, the token schedule, interruption."""

import random
from argparse import Namespace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import regex
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from voxport.bundle.tekken import load_tekken
from voxport.model.synthetic.tokenizer import PATTERN, SPECIALS
from voxport.model.training.data.espeak import Event, phoneme_at, word_ends
from voxport.model.training.data.phonemes import PHONEMES, phoneme_class
from voxport.model.training.data.sentences import (
    HELD_OUT,
    held_out_sentences,
    held_out_word_sentences,
    spell,
    training_sentences,
)
from voxport.model.training.data.tokens import Encoder, learn_tokens, tekken_document
from voxport.model.training.loop import Schedule, Trainer
from voxport.model.training.recognition.streams import SCHEDULE, fed_and_targets, stream_tokens
from voxport.model.training.speech.batches import IGNORED, make_sequence
from voxport.model.training.voxtral_realtime import schedule_of
from voxport.model.training.voxtral_tts import hash_of
from voxport.model.training.word_errors import word_error_rate

PAD, WORD = SCHEDULE.pad_id, SCHEDULE.word_id
TEXTS = ["The cat sat on the mat.", "A cat and the hat.", "That is the hat."] * 5


def test_sentences_follow_from_their_seed() -> None:
    first, again, other = (list(islice(training_sentences(seed), 50)) for seed in (3, 3, 4))
    assert first == again != other


def test_no_training_sentence_is_held_out() -> None:
    trained = set(islice(training_sentences(0), 20_000))
    assert not trained & set(islice(held_out_sentences(), 500))
    assert not {word.lower().strip(".,?") for text in trained for word in text.split()} & set(HELD_OUT)


def test_held_out_words_occur_in_their_sentences() -> None:
    assert len(HELD_OUT) > 50
    for text in islice(held_out_word_sentences(), 20):
        assert len(set(text.lower().strip(".").split()) & set(HELD_OUT)) == 2


def test_sentences_have_no_unfilled_slot_and_plain_words_only() -> None:
    for text in islice(training_sentences(1), 2000):
        assert regex.fullmatch(r"[A-Z][A-Za-z', ]*[.?]", text), text


@pytest.mark.parametrize(
    ("number", "to", "words"),
    [
        (25, "cardinal", "twenty five"),
        (1500, "cardinal", "one thousand five hundred"),
        (31, "ordinal", "thirty first"),
    ],
)
def test_numbers_are_spelled_without_hyphens_and_commas(number: int, to: str, words: str) -> None:
    assert spell(number, to) == words


def _words_at(*starts: tuple[int, int]) -> list[Event]:
    return [Event(sample, None, offset) for sample, offset in starts]


def test_a_word_ends_where_the_next_begins() -> None:
    assert word_ends("one two three", _words_at((0, 0), (100, 4), (250, 8)), 400) == (100, 250, 400)


def test_a_word_ends_at_the_pause_behind_it() -> None:
    events = [*_words_at((0, 0), (300, 5)), Event(120, "_:", 3), Event(310, "t", 5)]
    assert word_ends("one, two", sorted(events), 500) == (120, 500)


def test_words_that_are_spoken_as_one_end_together() -> None:
    assert word_ends("on the wall", _words_at((0, 0), (90, 7)), 200) == (90, 90, 200)


def test_words_end_in_order_if_an_event_points_into_another_word() -> None:
    assert word_ends("it is", _words_at((0, 0), (80, 1)), 200) == (200, 200)


def test_the_phoneme_of_a_time_is_the_last_one_that_began() -> None:
    import numpy as np

    spoken = (("k", 10), ("a", 20), ("_:", 30))
    assert phoneme_at(spoken, np.array([-5, 10, 19, 20, 35, 40]), 40) == ["_", "k", "k", "a", "_:", "_"]


def test_every_pause_is_one_class_and_unknown_names_another() -> None:
    assert {phoneme_class(name) for name in ("_", "_:", "_!")} == {0}
    assert phoneme_class("new") == 1 and phoneme_class("n") == PHONEMES.index("n") > 1


def test_tokens_begin_with_all_bytes_and_merge_the_most_frequent_pair_first() -> None:
    tokens = learn_tokens(TEXTS, 300)
    assert tokens[:256] == [bytes([byte]) for byte in range(256)]
    assert tokens[256] == b"at" and len(set(tokens)) == len(tokens)


@given(st.text(max_size=30))
def test_text_survives_encoding_with_and_without_all_merges(text: str) -> None:
    encoder = Encoder(learn_tokens(TEXTS, 280))
    for dropped in (0.0, 0.5):
        assert encoder.decode(encoder.encode(text, dropped, random.Random(0))) == text


def test_ids_are_those_of_the_published_tokenizer(tmp_path: Path) -> None:
    import json

    tokens = learn_tokens(TEXTS, 290)
    (tmp_path / "tekken.json").write_text(json.dumps(tekken_document(tokens, {24: "[AUDIO]"}, {})))
    tekken = load_tekken(tmp_path / "tekken.json")
    for text in (*TEXTS[:3], "the unseen héllo 12", "  two  blanks"):
        assert Encoder(tokens).encode(text) == tekken.encode(text, bos=False, eos=False)


def test_left_out_merges_give_more_tokens() -> None:
    encoder = Encoder(learn_tokens(TEXTS, 300))
    assert len(encoder.encode(TEXTS[0], 1.0, random.Random(0))) == len(TEXTS[0])
    assert len(encoder.encode(TEXTS[0])) < len(regex.findall(PATTERN, TEXTS[0])) + 6
    assert min(encoder.encode(TEXTS[0])) >= SPECIALS


def test_a_word_comes_when_due_and_waits_for_the_word_before() -> None:
    found = stream_tokens([(2, [1001, 1002]), (3, [1003]), (9, [1004])], 12)
    assert found == [PAD, PAD, WORD, 1001, 1002, WORD, 1003, PAD, PAD, WORD, 1004, PAD]


def test_words_beyond_the_end_are_left_out() -> None:
    assert stream_tokens([(1, [1001]), (2, [1002, 1003])], 4) == [PAD, WORD, 1001, PAD]


def test_each_position_is_fed_the_token_before_and_the_prompt_has_no_targets() -> None:
    tokens = stream_tokens([(4, [1001])], 7)
    fed, targets = fed_and_targets(tokens, prompt=4)
    assert fed == [SCHEDULE.bos_id, PAD, PAD, PAD, PAD, WORD, 1001]
    assert targets == [-100, -100, -100, PAD, WORD, 1001, PAD]
    assert fed[4:] == targets[3:-1]


def test_a_prompt_is_the_published_one() -> None:
    voice, codes = torch.full((2, 3), 5), torch.tensor([[7, 2, 3], [8, 4, 5]])
    found = make_sequence([1001, 1002], voice, codes)
    assert found.ids.tolist() == [1, 25, 24, 24, 36, 1001, 1002, 35, 25, 24, 24]
    assert found.targets.tolist() == [IGNORED] * 8 + [7, 8, 1]
    assert found.is_code.tolist() == [False] * 2 + [True] * 2 + [False] * 5 + [True] * 2
    assert found.codes[9:].tolist() == codes.tolist()


def test_the_word_error_rate_is_over_all_words_and_ignores_case_and_punctuation() -> None:
    assert word_error_rate(["One two.", "Three, four five?"], ["one TWO", "three five"]) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("steps", "cooldown", "expected"),
    [(None, None, (90, 20)), (50, None, (50, 0)), (None, 5, (90, 5)), (50, 5, (50, 5))],
)
def test_a_training_has_the_steps_of_the_embedded_model_by_default(
    steps: int | None, cooldown: int | None, expected: tuple[int, int]
) -> None:
    arguments = Namespace(steps=steps, cooldown=cooldown, rate=1e-3)
    found = schedule_of(arguments, 90, 20)
    assert (found.steps, found.cooldown) == expected


def test_noise_follows_from_the_whole_seed() -> None:
    """Of steps and seeds whose last digits are equal."""
    assert len({hash_of(seed) for seed in ("0:12345", "10:12345", "0:112345")}) == 3


def test_the_learning_rate_rises_stays_and_falls() -> None:
    schedule = Schedule(100, rate=1.0, warmup=10, cooldown=20)
    assert [schedule.at(step) for step in (0, 9, 50, 80, 90, 99)] == pytest.approx([0.1, 1, 1, 1, 0.5, 0.05])


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        attention = nn.ModuleDict({"wq": nn.Linear(4, 4)})
        self.block: Any = nn.ModuleDict({"attention": attention})  # its matrix is trained with Muon
        self.out = nn.Linear(4, 2)  # with AdamW


def _run(folder: Path, steps: int) -> Trainer:
    model = _Model()

    def losses(step: int) -> dict[str, torch.Tensor]:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        return {"loss": model.out(model.block["attention"]["wq"](x)).square().mean()}

    trainer = Trainer(model, folder, "model", Schedule(steps, warmup=1))
    trainer.run(losses, save_every=1, log_every=1)
    return trainer


def test_a_run_that_was_interrupted_ends_in_the_same_state(tmp_path: Path) -> None:
    whole = _run(tmp_path / "whole", 2)
    _run(tmp_path / "parts", 1)
    parts = _run(tmp_path / "parts", 2)
    assert parts.step == 2 and len(parts.optimisers) == 2
    saved = [torch.load(trainer.path, weights_only=True) for trainer in (whole, parts)]
    for key in ("model", "average"):
        assert all(torch.equal(saved[0][key][name], value) for name, value in saved[1][key].items())
    for first, second in zip(*(state["optimisers"] for state in saved), strict=True):
        for index, values in first["state"].items():
            assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(second["state"][index][key]))
                       for key, value in values.items())  # fmt: skip


def test_an_interrupted_save_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = _run(tmp_path, 1)
    before = trainer.path.read_bytes()

    def fail(state: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(KeyboardInterrupt):
        trainer.save()
    assert trainer.path.read_bytes() == before
