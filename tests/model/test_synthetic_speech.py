"""Synthetic checkpoints speak: prompts of their tokenizer, and the whole loop in eager modules."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mistral_common.protocol.speech.request import SpeechRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from voxport.bundle.constants.voxtral_tts import END_AUDIO, FIRST_CODE
from voxport.model.checkpoint import Checkpoint, materialize
from voxport.model.families import open_family
from voxport.model.graph import Component, ModelSpec
from voxport.model.voxtral_tts.config import Options, VoxtralTTSConfig
from voxport.model.voxtral_tts.family import FAMILY
from voxport.model.voxtral_tts.layouts import MISTRAL
from voxport.model.voxtral_tts.sizes import SIZES

BEGIN, AUDIO, BEGIN_AUDIO, AFTER_TEXT, BEFORE_TEXT = 1, 24, 25, 35, 36
LIMIT = 200  # frames
TEXTS = [
    "Hello.",
    "L'été, où ? Über Äpfel",
    "🙂 👩‍👩‍👧 e\u0301",
    "2026 and 3,14",
    "\t two  blanks\r\n",
    "[AUDIO] </s> [INST] <SPECIAL_20>",
]


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> MistralTokenizer[Any, Any, Any, Any, Any]:
    return MistralTokenizer.from_file(checkpoint / "tekken.json")


def text_ids(
    tokenizer: MistralTokenizer[Any, Any, Any, Any, Any], text: str, voice: str = "fr_male"
) -> list[int]:
    """The ids of the text. Asserts that the markers and the voice around them are correct."""
    ids, rows = (
        tokenizer.encode_speech_request(SpeechRequest(input=text, voice=voice)).tokens,
        SIZES["tiny"].voices[voice],
    )
    assert ids[: rows + 3] == [BEGIN, BEGIN_AUDIO, *[AUDIO] * rows, BEFORE_TEXT]
    assert ids[-2:] == [AFTER_TEXT, BEGIN_AUDIO]
    found: list[int] = ids[rows + 3 : -2]
    return found


@pytest.mark.parametrize("voice", SIZES["tiny"].voices)
@pytest.mark.parametrize("text", TEXTS)
def test_a_prompt_is_markers_voice_and_text_and_nothing_typed_becomes_a_marker(
    tokenizer: MistralTokenizer[Any, Any, Any, Any, Any], text: str, voice: str
) -> None:
    ids = text_ids(tokenizer, text, voice)
    assert min(ids) >= 1000
    assert max(ids) < 1536
    assert tokenizer.decode(ids) == text


@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_decoded_ids_equal_the_text(tokenizer: MistralTokenizer[Any, Any, Any, Any, Any], text: str) -> None:
    ids = text_ids(tokenizer, text)
    assert all(1000 <= token < 1536 for token in ids)
    assert tokenizer.decode(ids) == text


def test_digits_are_single_and_common_words_are_not_bytes(
    tokenizer: MistralTokenizer[Any, Any, Any, Any, Any],
) -> None:
    assert len(text_ids(tokenizer, "2026")) == 4
    assert len(text_ids(tokenizer, " the")) == 1
    assert len(text_ids(tokenizer, " été")) == 1


def test_the_tokenizer_file_has_entries_beyond_the_vocabulary(checkpoint: Path) -> None:
    content = json.loads((checkpoint / "tekken.json").read_text(encoding="utf-8"))
    assert len(content["vocab"]) == content["config"]["num_vocab_tokens"] == 600
    words = Tekkenizer.from_file(checkpoint / "tekken.json").n_words
    assert words == MISTRAL.load_config(checkpoint).vocab_size == 1536


def test_the_published_vocabulary_size_loads(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(
        json.dumps(open_family("voxtral_tts").synthetic.documents("full")["tekken.json"]), encoding="utf-8"
    )
    loaded = MistralTokenizer.from_file(tmp_path / "tekken.json")
    prompt = loaded.encode_speech_request(SpeechRequest(input="x", voice="casual_male")).tokens
    assert (len(prompt), prompt.count(AUDIO)) == (147 + 1 + 5, 147)


class Speaker:
    """The whole loop in eager modules: text to codes to samples."""

    def __init__(self, folder: Path) -> None:
        self.config: VoxtralTTSConfig = MISTRAL.load_config(folder)
        checkpoint = Checkpoint(MISTRAL.weight_files(folder))
        root: Any = FAMILY.open_root(self.config, checkpoint)
        materialize(root, checkpoint, [name for name, _ in root.named_children()])
        model = ModelSpec(self.config, Options(), LIMIT + 200)
        self.parts: dict[str, Component] = {part.name: part for part in FAMILY.components(model)}
        graphs = FAMILY.graphs(model.config, model.options)
        self.modules = {graph.name: graph.build(root, model) for graph in graphs}
        self.voices = MISTRAL.voices(folder, self.config)
        self.tokenizer = MistralTokenizer.from_file(folder / "tekken.json")

    def run(self, name: str, *inputs: torch.Tensor) -> Any:
        with torch.no_grad():
            return self.modules[self.parts[name].graph](*inputs)

    def codes(self, text: str, voice: str, seed: int) -> list[torch.Tensor]:
        """Codes [1, K] of each frame before END_AUDIO, or LIMIT of them."""
        ids = self.tokenizer.encode_speech_request(SpeechRequest(input=text, voice=voice)).tokens
        embeddings = self.run("embed_text", torch.tensor([[*ids, AUDIO]]))
        rows = self.voices[voice].float()
        embeddings[0, 2 : 2 + len(rows)] = rows
        states = [torch.zeros(state.shape) for state in self.parts["prefill"].signature.states]
        _, logits, condition, *states = self.run("prefill", embeddings, torch.tensor([0]), *states)
        rng, frames = np.random.default_rng(seed), []
        for position in range(len(ids) + 1, len(ids) + 1 + LIMIT):
            semantic = 1 + int(logits[0, 1 : FIRST_CODE + self.config.audio.semantic_codebook_size].argmax())
            if semantic == END_AUDIO:
                break
            frames.append(torch.cat((torch.tensor([[semantic]]), self.acoustic_codes(rng, condition)), dim=1))
            _, logits, condition, *states = self.run(
                "decode_step", self.run("embed_codes", frames[-1]), torch.tensor([position]), *states
            )
        return frames

    def acoustic_codes(self, rng: np.random.Generator, condition: torch.Tensor) -> torch.Tensor:
        x = torch.from_numpy(rng.standard_normal((1, 36), dtype=np.float32))
        for step in range(self.config.acoustic.n_decoding_steps):
            x, _ = self.run("acoustic_step", x, torch.tensor([step]), condition)
        return ((x.clamp(-1, 1) + 1) * 10).round().long() + FIRST_CODE

    def audio(self, frames: list[torch.Tensor]) -> torch.Tensor:
        states = [torch.zeros(state.shape) for state in self.parts["codec"].signature.states]
        samples, *_ = self.run("codec", torch.stack(frames, dim=1), torch.tensor([0]), *states)
        found: torch.Tensor = samples
        return found


@pytest.fixture(scope="module")
def spoken(checkpoint: Path) -> tuple[Speaker, list[list[torch.Tensor]]]:
    speaker = Speaker(checkpoint)
    sentences = [
        "Hello there. This is a model of random weights.",
        "Où vas-tu ?",
        "One, two, three, and so on until the end of the sentence.",
    ]
    return speaker, [
        speaker.codes(text, voice, seed) for text in sentences for voice in speaker.voices for seed in (0, 1)
    ]


def test_sentences_end_after_a_plausible_number_of_frames(
    spoken: tuple[Speaker, list[list[torch.Tensor]]],
) -> None:
    lengths = [len(frames) for frames in spoken[1]]
    assert min(lengths) > 0
    assert sum(length == LIMIT for length in lengths) <= 1
    assert 10 < np.mean(lengths) < 80


def test_codes_change_from_frame_to_frame_and_use_much_of_the_code_books(
    spoken: tuple[Speaker, list[list[torch.Tensor]]],
) -> None:
    codes = torch.cat([frame for frames in spoken[1] for frame in frames])  # [T, K]
    assert float((codes[1:] != codes[:-1]).float().mean()) > 0.6
    assert len(codes[:, 0].unique()) > 60
    assert len(codes[:, 1:].unique()) == 21


def test_the_audio_is_audible_and_does_not_clip(spoken: tuple[Speaker, list[list[torch.Tensor]]]) -> None:
    speaker, utterances = spoken
    audio = speaker.audio(max(utterances, key=len))
    assert 0.05 < float(audio.square().mean().sqrt()) < 0.3
    assert float(audio.abs().max()) < 1
