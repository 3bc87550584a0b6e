"""Qwen3-ASR beside the official package: features, encoder, tokens, prompts and answers.

Differences of 1e-4 are generous in float32: the package's own kernels differ by up to 7e-6.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.paths import GOLDEN

from voxport.bundle.constants.qwen3_asr import ALIGN, CODES, ENCODER
from voxport.bundle.errors import UsageError
from voxport.model.checkpoint import materialize
from voxport.model.layers.qwen_block import QwenStack
from voxport.model.qwen3_asr.config import Options
from voxport.model.qwen3_asr.family import FAMILY
from voxport.model.qwen3_asr.modules import Encoder, rows_of
from voxport.runtime.engines.base import Arrays
from voxport.runtime.families.qwen3_asr.aligner import QwenAligner
from voxport.runtime.families.qwen3_asr.answer import Request
from voxport.runtime.families.qwen3_asr.encoder import SoundEncoder
from voxport.runtime.families.qwen3_asr.features import GrowingMel
from voxport.runtime.families.qwen3_asr.recogniser import Recogniser
from voxport.runtime.families.qwen3_asr.splitting import split
from voxport.runtime.families.qwen3_asr.streaming import StreamSettings
from voxport.runtime.families.qwen3_asr.text import Tokenizer, forced_answer, parse_answer
from voxport.runtime.families.qwen3_asr.times import mended
from voxport.runtime.families.qwen3_asr.transcriptions import (
    LiveTranscription,
    Parts,
    RecordingTranscription,
)
from voxport.runtime.families.qwen3_asr.words import words_of
from voxport.runtime.text.languages import without_repeats

FOLDER = GOLDEN / "qwen3_asr"
CLOSE, ROWS = 1e-4, 512
TEXTS = json.loads((FOLDER / "text.json").read_text(encoding="utf-8"))
CLIPS = ("tiny", "window", "odd", "silence", "unseen")


class Reference:
    """The recogniser in PyTorch."""

    def __init__(self, folder: Path):
        self.config = FAMILY.layout.load_config(folder)
        self.constants = FAMILY.constants(self.config, Options())
        paths = [folder / name for name in FAMILY.layout.tokenizer_files(folder)]
        self.tokenizer = Tokenizer(paths, self.constants)
        root = FAMILY.open_root(self.config, checkpoint := FAMILY.open_checkpoint(folder))
        materialize(root, checkpoint, ("thinker",))
        thinker, text = root.thinker, self.config.thinker_config.text_config
        self.table = thinker.model.embed_tokens.weight.clone()
        root.requires_grad_(False)
        self.encoder = Encoder(thinker.audio_tower, self.config.thinker_config.audio_config)
        self.decoder = QwenStack(thinker.model, thinker.lm_head, text, ROWS, all_rows=self.config.is_aligner)
        shape = (1, ROWS, text.num_key_value_heads, text.head_dim)
        self.caches = [torch.zeros(shape) for _ in range(2 * text.num_hidden_layers)]

    def sound(self, mel: np.ndarray) -> torch.Tensor:
        """mel [frames, mels] -> rows [n, width], window by window."""
        size, rows = 100 * self.constants.window_chunks, list[torch.Tensor]()
        for start in range(0, len(mel), size):
            frames = torch.from_numpy(mel[start : start + size])
            padded = torch.nn.functional.pad(frames, (0, 0, 0, -len(frames) % 100)).reshape(1, -1, 100, 128)
            count = torch.tensor([len(frames)])
            found = self.encoder(padded, count, torch.tensor([int(len(mel) < 100)]))
            rows.append(found[0, : int(rows_of(count))])
        return torch.cat(rows)

    def logits(self, ids: np.ndarray, sound: torch.Tensor, tokens: np.ndarray) -> np.ndarray:
        """Logits from which each of the tokens is chosen."""
        prompt = torch.from_numpy(ids).long()
        rows = self.table[prompt].clone()
        rows[prompt == self.constants.audio_pad_id] = sound
        caches, found = [cache.clone() for cache in self.caches], list[torch.Tensor]()
        inputs, position = rows, 0
        for token in tokens:
            _, logits, *caches = self.decoder(inputs[None], torch.tensor([position]), *caches)
            found.append(logits[0])
            position += len(inputs)
            inputs = self.table[int(token)][None]
        return torch.stack(found).numpy()


class EagerStream:
    """The recogniser as a stream of an engine. It counts the windows and rows that are computed."""

    def __init__(self, reference: Reference):
        self.signatures = dict.fromkeys(("prefill", ALIGN), SimpleNamespace(dims={"S": (1, 64)}))
        self.reference, self.caches = reference, reference.caches
        self.rows = self.windows = 0

    def capacity(self, component: str) -> int:
        return ROWS

    def run_rows(self, component: str, inputs: Arrays) -> Arrays:
        return {"embeddings": self.reference.table[torch.from_numpy(inputs["ids"])].numpy()}

    def run(self, component: str, inputs: Arrays) -> Arrays:
        arrays = [torch.from_numpy(array) for array in inputs.values()]
        if component == ENCODER:
            self.windows += 1
            return {"embeddings": self.reference.encoder(*arrays).numpy()}
        self.rows += arrays[0].shape[1]
        hidden, logits, *self.caches = self.reference.decoder(*arrays, *self.caches)
        return {"hidden": hidden.numpy(), "logits": logits.numpy()}


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    return dict(np.load(FOLDER / "asr.npz"))


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(FOLDER / "asr")


@pytest.mark.parametrize("clip", CLIPS)
def test_features_and_encoder(reference: Reference, golden: dict[str, np.ndarray], clip: str) -> None:
    mel = GrowingMel(reference.constants).of(golden[f"{clip}_pcm"].astype(np.float32) / 32768)
    assert np.abs(mel.T - golden[f"{clip}_mel"]).max() < CLOSE
    sound = reference.sound(np.ascontiguousarray(golden[f"{clip}_mel"].T))
    assert np.abs(sound.numpy() - golden[f"{clip}_sound"]).max() < CLOSE


@pytest.mark.parametrize("run", TEXTS["runs"])
def test_tokens_and_answer(reference: Reference, golden: dict[str, np.ndarray], run: str) -> None:
    clip, forced = run.split("_")[0], {"odd_forced": "English", "unseen_forced": "Korean"}.get(run)
    ids, tokens = golden[f"{run}_ids"], golden[f"{run}_tokens"]
    sound = torch.from_numpy(golden[f"{clip}_sound"])
    context = "harbour, 3 friends" if run == "odd_context" else ""
    assert reference.tokenizer.prompt(len(sound), context, forced_answer(forced)) == ids.tolist()
    logits = reference.logits(ids, sound, tokens)
    assert np.abs(logits - golden[f"{run}_logits"]).max() < CLOSE
    assert logits.argmax(axis=1).tolist() == tokens.tolist()
    expected, raw = TEXTS["runs"][run], reference.tokenizer.decode(tokens)
    assert raw == expected["raw"]
    assert parse_answer(raw, forced) == (expected["language"], expected["text"])


@pytest.mark.parametrize("case", TEXTS["parse"])
def test_answers(case: dict[str, str]) -> None:
    assert parse_answer(case["raw"], case["forced"] or None) == (case["language"], case["text"])


@pytest.mark.parametrize("case", TEXTS["tokenizer"])
def test_ids_of_texts(reference: Reference, case: dict[str, list[int]]) -> None:
    assert reference.tokenizer.encode(str(case["text"])) == case["ids"]


@pytest.fixture
def parts(reference: Reference) -> Parts:
    return Parts(reference.constants, reference.tokenizer, ROWS)


@pytest.fixture(params=["reused", "anew"])
def is_reused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether features, windows and rows of earlier chunks are kept, or all of them are computed anew."""
    if request.param == "anew":
        of = GrowingMel.of
        monkeypatch.setattr(GrowingMel, "of", lambda self, samples: of(GrowingMel(self._constants), samples))
        monkeypatch.setattr(SoundEncoder, "_windows", property(lambda _: [], lambda *_: None), raising=False)
        monkeypatch.setattr(Recogniser, "_known_rows", lambda *_: 0)
    return bool(request.param == "reused")


@pytest.mark.parametrize("name", TEXTS["streams"])
def test_a_stream_continues_its_answer_and_reads_known_rows_once(
    reference: Reference, parts: Parts, golden: dict[str, np.ndarray], name: str, is_reused: bool
) -> None:
    run = TEXTS["streams"][name]
    settings = StreamSettings(
        run.get("chunk_size_sec", 2.0), run.get("unfixed_chunk_num", 2), run.get("unfixed_token_num", 5)
    )
    samples, forced = golden[f"{run['clip']}_pcm"].astype(np.float32) / 32768, run["language"] or ""
    calls = list[tuple[list[int], list[int]]]()
    stream = cast(Any, EagerStream(reference))
    live = LiveTranscription(stream, parts, Request(forced, run["context"]), settings)
    answer = Recogniser.answer

    def recorded(self: Recogniser, ids: list[int], *arguments: Any) -> Iterator[int]:
        calls.append((ids, tokens := list(answer(self, ids, *arguments))))
        return iter(tokens)

    with patch.object(Recogniser, "answer", recorded):
        pieces = np.split(samples, range(999, len(samples), 999))
        found = [delta for piece in pieces for delta in live.feed(piece)] + list(live.finish())
    prompts = [
        reference.tokenizer.prompt(call["audio_tokens"], run["context"], call["prompt_end"])
        for call in run["calls"]
    ]
    expected = [(ids, call["tokens"][:-1]) for ids, call in zip(prompts, run["calls"], strict=True)]
    text = run["states"][-1]["text"]
    if name == "stream_japanese":  # before its last call, the package keeps half of a character
        text, expected[-1] = "今日はとても良い天気ですね。", calls[-1]
    assert calls == expected
    assert "".join(delta.text for delta in found) == text
    rows = sum(len(ids) + len(tokens) for ids, tokens in calls)
    assert stream.rows < 0.8 * rows if is_reused else stream.rows >= rows


@pytest.mark.parametrize("length", ["whole", "pieces"])
def test_a_recording_is_the_text_of_its_pieces(
    reference: Reference, parts: Parts, golden: dict[str, np.ndarray], length: str
) -> None:
    expected = TEXTS["pieces"]
    request = Request(longest_s=expected["max_chunk_sec"]) if length == "pieces" else Request()
    transcription = RecordingTranscription(cast(Any, EagerStream(reference)), parts, request)
    samples = golden["long_pcm"].astype(np.float32) / 32768
    found = [*transcription.feed(samples[:50_000]), *transcription.feed(samples[50_000:])]
    found += transcription.finish()
    text = "".join(delta.text for delta in found)
    assert {delta.language for delta in found} == {"en"} and len(found) > 5
    if length == "pieces":
        first, second = expected["text"].split("lantern")  # the package puts nothing between the texts
        assert text == f"{first}lantern {second}"
    else:
        assert text == TEXTS["streams"]["stream"]["states"][-1]["text"]


@pytest.mark.parametrize("case", TEXTS["splits"])
def test_long_recordings_are_divided(golden: dict[str, np.ndarray], case: dict[str, Any]) -> None:
    clips = [golden[f"{name}_pcm"].astype(np.float32) / 32768 for name in ("odd", "mixed", "window")]
    zeros = [np.zeros(count, np.float32) for count in (9000, 5000)]
    whole = np.concatenate((clips[0], zeros[0], clips[1], zeros[1], clips[2]))
    samples = np.zeros(16_400, np.float32) if case["of"].startswith("zeros") else whole
    pieces = split(samples, case["max_chunk_sec"], 16_000, case["search_expand_sec"])
    assert [len(piece) for piece in pieces] == case["samples"]


WITH_PACKAGES = ("Japanese", "Korean")


@pytest.mark.parametrize("case", [case for case in TEXTS["words"] if case["language"] not in WITH_PACKAGES])
def test_words(case: dict[str, Any]) -> None:
    assert words_of(case["text"], CODES[case["language"]]) == case["words"]


def test_words_of_other_packages() -> None:
    """In a process of its own, because a package sets the processor to flush small numbers to zero."""
    cases = [case for case in TEXTS["words"] if case["language"] in WITH_PACKAGES]
    texts = [(case["text"], CODES[case["language"]]) for case in cases]
    program = f"import json, sys; from {words_of.__module__} import words_of; "
    program += "print(json.dumps([words_of(*each) for each in json.loads(sys.argv[1])]))"
    command = [sys.executable, "-W", "ignore", "-c", program, json.dumps(texts)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [case["words"] for case in cases] and len(cases) == 4


def test_times_and_languages() -> None:
    for case in TEXTS["mend"]:
        assert mended(case["ms"]) == case["mended"]
    for case in TEXTS["merge_languages"]:
        assert ",".join(without_repeats(case["of"])) == case["merged"]


@pytest.fixture(scope="module")
def aligner() -> QwenAligner:
    reference = Reference(FOLDER / "aligner")
    engine = cast(Any, SimpleNamespace(stream=lambda: EagerStream(reference)))
    return QwenAligner(engine, reference.constants, reference.tokenizer, ROWS)


@pytest.mark.parametrize("name", TEXTS["aligned"])
def test_times_of_words(
    aligner: QwenAligner, golden: dict[str, np.ndarray], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TEXTS["aligned"][name]
    # the rules of two languages are of other packages, which need not be installed
    monkeypatch.setattr("voxport.runtime.families.qwen3_asr.aligner.words_of", lambda *given: run["words"])
    samples = golden[f"{run['clip']}_pcm"].astype(np.float32) / 32768
    found = aligner.align(samples, run["text"], CODES[run["language"]])
    assert [[word.start, word.end] for word in found.words] == [times for _, *times in run["items"]]
    assert (found.mended > 0) == (run["mended_ms"] != [80 * slot for slot in run["slots"]])


def test_a_text_without_words_and_a_recording_that_is_too_long(aligner: QwenAligner) -> None:
    assert not aligner.align(np.zeros(16_000, np.float32), "... !!!").words
    with pytest.raises(UsageError, match="up to 96 s; divide"):
        aligner.align(np.zeros(97 * 16_000, np.float32), "Hello.")
    with pytest.raises(UsageError, match="keeps 512; divide both"):
        aligner.align(np.zeros(16_000, np.float32), "Hello. " * 200)
