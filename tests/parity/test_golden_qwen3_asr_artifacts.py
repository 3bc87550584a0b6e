"""Artifacts of Qwen3-ASR and its aligner beside the official package: texts, streams and times are exact."""

import json
import re
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from openai import NotFoundError, OpenAI
from support.commands import error_line
from support.export.cache import ExportCache
from support.model.micro import micro_checkpoint
from support.paths import GOLDEN
from support.runtime.recordings import write_recording
from support.serve.http_server import running

from voxport.__main__ import main
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle, ExportRequest
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.runtime.audio.captions import Word
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.families import read_constants
from voxport.runtime.families.qwen3_asr.aligned import AlignedSpeechToText
from voxport.runtime.families.qwen3_asr.aligner import time_logits
from voxport.runtime.families.qwen3_asr.recogniser import Recogniser
from voxport.runtime.families.qwen3_asr.splitting import split
from voxport.runtime.families.qwen3_asr.workload import encoded
from voxport.runtime.forced_alignment import ForcedAlignment
from voxport.runtime.opening import open_task
from voxport.runtime.serve.models import open_bundles
from voxport.runtime.speech_to_text import SpeechToText

FOLDER = GOLDEN / "qwen3_asr"
TEXTS = json.loads((FOLDER / "text.json").read_text(encoding="utf-8"))
TARGETS = [
    "onnx",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("executorch", "coreml", "coreai")),
]
CLIPS = ("tiny", "odd", "unseen")  # less than a chunk, two windows, three windows
ALIGNED = ("english", "one_word")
CLOSE = 1e-4  # as for eager: all artifacts here compute in float32


def exported(exports: ExportCache, kind: str, target: str, folder: Path) -> tuple[Path, EngineOptions]:
    precise = ["--compute-precision", "float32"] if target in ("coreml", "coreai") else []
    arguments = ["--checkpoint", str(FOLDER / kind), "--target", target, "--quant", "none"]
    exports.export(folder / kind, *arguments, "--cache-length", "512", *precise, "--no-verify")
    return folder / kind, EngineOptions(compute_precision="float32" if target == "coreml" else None)


@pytest.fixture(scope="module")
def sounds() -> dict[str, np.ndarray]:
    """float32 samples [n] of each clip."""
    with np.load(FOLDER / "asr.npz") as golden:
        names = [name.removesuffix("_pcm") for name in golden if name.endswith("_pcm")]
        return {name: golden[f"{name}_pcm"].astype(np.float32) / 32768 for name in names}


@pytest.mark.parametrize("target", TARGETS)
def test_texts_and_streams(
    exports: ExportCache, sounds: dict[str, np.ndarray], tmp_path: Path, target: str
) -> None:
    task = open_task(SpeechToText, *exported(exports, "asr", target, tmp_path))
    for clip in CLIPS:
        found = "".join(delta.text for delta in task.transcribe([sounds[clip]]))
        assert found == TEXTS["runs"][clip]["text"]
    stream = TEXTS["streams"]["stream_default"]
    pieces = np.split(sounds[stream["clip"]], range(5000, len(sounds[stream["clip"]]), 5000))
    deltas = list(task.transcribe(pieces, live=True))
    assert "".join(delta.text for delta in deltas) == stream["states"][-1]["text"] and len(deltas) > 1


@pytest.mark.parametrize("kind", ["asr", "aligner"])
@pytest.mark.parametrize("target", TARGETS)
def test_encoder_and_forced_logits(
    exports: ExportCache, sounds: dict[str, np.ndarray], tmp_path: Path, target: str, kind: str
) -> None:
    folder, options = exported(exports, kind, target, tmp_path)
    bundle, golden = Bundle(folder), np.load(FOLDER / f"{kind}.npz")
    constants, stream = read_constants(bundle.job), open_engine(bundle, options).stream()
    for name in CLIPS if kind == "asr" else ALIGNED:
        ids, clip = golden[f"{name}_ids"].tolist(), name if kind == "asr" else TEXTS["aligned"][name]["clip"]
        sound = encoded(stream, constants, sounds[clip])
        if f"{name}_sound" in golden:
            assert np.abs(sound - golden[f"{name}_sound"]).max() < CLOSE
        if kind == "asr":
            recogniser = Recogniser(stream, constants)
            steps = map(recogniser.advance, golden[f"{name}_tokens"][:-1].tolist())
            logits = np.stack([recogniser.read(ids, sound), *steps])
        else:
            logits = time_logits(stream, constants, ids, sound)
        assert np.abs(logits - golden[f"{name}_logits"]).max() < CLOSE


@pytest.mark.parametrize("target", TARGETS)
def test_times(exports: ExportCache, sounds: dict[str, np.ndarray], tmp_path: Path, target: str) -> None:
    aligner = open_task(ForcedAlignment, *exported(exports, "aligner", target, tmp_path))
    for name in ("english_long", "german", "one_word"):
        run = TEXTS["aligned"][name]
        found = aligner.align(sounds[run["clip"]], run["text"])
        assert [[word.start, word.end] for word in found.words] == [times for _, *times in run["items"]]


def test_a_long_recording_is_aligned_piece_by_piece(
    exports: ExportCache, sounds: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """Blocks of any size give the words of each piece alone, later by what was before."""
    task = open_task(SpeechToText, *exported(exports, "asr", "onnx", tmp_path))
    aligner = open_task(ForcedAlignment, *exported(exports, "aligner", "onnx", tmp_path))
    sound = np.concatenate([sounds[clip] for clip in ("odd", "unseen", "odd", "unseen")])
    expected, texts, start = list[Word](), list[str](), 0
    for piece in split(sound, 6.0, task.sample_rate):
        texts.append("".join(delta.text for delta in task.transcribe([piece], language="en")).strip())
        for word in aligner.align(piece, texts[-1], "en").words:
            times = (round(start / 16_000 + each, 3) for each in (word.start, word.end))
            expected.append(Word(word.text, *times))
        start += len(piece)
    aligned = AlignedSpeechToText(task, aligner, piece_s=6.0)
    blocks = np.split(sound, range(7000, len(sound), 7000))
    with patch.object(task, "begin", wraps=task.begin) as begin:
        found = list(aligned.transcribe(blocks, language="English"))
    assert begin.call_count == len(texts)
    assert "".join(delta.text for delta in found).strip() == " ".join(filter(None, texts)) and len(texts) > 2
    assert [word for delta in found for word in delta.words] == expected
    assert "".join(word.text for word in expected) == "".join("".join(texts).split())


def test_a_server_with_an_aligner_gives_times_of_words(
    exports: ExportCache, sounds: dict[str, np.ndarray], tmp_path: Path
) -> None:
    asr, _ = exported(exports, "asr", "onnx", tmp_path)
    folder, options = exported(exports, "aligner", "onnx", tmp_path)
    for folders, reason in (([folder], "needs a recogniser"), ([asr, folder, folder], "two aligners")):
        with pytest.raises(UsageError, match=reason):
            open_bundles(folders)
    write_recording(recording := tmp_path / "odd.wav", sounds["odd"], 16_000)
    with running(open_bundles([folder, asr])) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        listed = {each.id: each.model_dump() for each in client.models.list()}
        assert listed["aligner"]["task"] == client.models.retrieve("aligner").model_dump()["task"]
        assert listed["aligner"]["task"] == "forced-alignment" != listed["asr"]["task"]
        with pytest.raises(NotFoundError, match="aligner is no model that transcribes"):
            client.audio.transcriptions.create(model="aligner", file=recording)
        found = client.audio.transcriptions.create(
            model="asr",
            file=recording,
            language="en",
            response_format="verbose_json",
            timestamp_granularities=["word"],
        )
    assert found.words
    with np.load(FOLDER / "asr.npz") as golden:
        counts = len(golden["odd_sound"]), len(golden["odd_forced_tokens"]) - 1  # without the end
    assert found.usage
    usage = found.usage.model_dump()
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == counts
    expected = open_task(ForcedAlignment, folder, options).align(sounds["odd"], found.text, "en").words
    assert [Word(each.word, each.start, each.end) for each in found.words] == expected


def test_bundles_of_both_kinds_are_timed(
    exports: ExportCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, components in (("asr", {"prefill", "decode_step"}), ("aligner", {"align"})):
        folder, _ = exported(exports, kind, "onnx", tmp_path)
        bench = ["bench", str(folder), "--frames", "2"]
        assert main([*bench, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["components"].keys() == {"embed_tokens", "audio_encoder", *components}
        assert found["step_s"] == 2 and found["rtf"] == found["frame"]["median_ms"] / 2000
        assert main(bench) == 0 and "\n2 s of sound in " in capsys.readouterr().out
        assert main(["info", str(folder)]) == 0 and "options: none;" in capsys.readouterr().out
    for command in (["evaluate"], ["evaluate", "--alone"], ["sweep"]):  # none asks for a checkpoint first
        assert main([*command, str(folder)]) == 2 and "an aligner gives times to words" in error_line(capsys)


def test_the_commands_transcribe_and_align(
    exports: ExportCache,
    sounds: dict[str, np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asr, _ = exported(exports, "asr", "onnx", tmp_path)
    aligner, _ = exported(exports, "aligner", "onnx", tmp_path)
    recording, text = tmp_path / "odd.wav", tmp_path / "odd.txt"
    write_recording(recording, sounds["odd"], 16_000)
    words = ["transcribe", str(recording), "--bundle", str(asr), "--gain", "off"]
    assert main([*words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["language"]) == (TEXTS["runs"]["odd"]["text"], "en")
    assert main([*words, "--language", "English"]) == 0
    text.write_text(capsys.readouterr().out)
    assert text.read_text().strip() == TEXTS["runs"]["odd_forced"]["text"]
    aligning = ["align", str(recording), "--text", str(text), "--bundle", str(aligner)]
    assert main([*aligning, "--language", "en"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["confidence"] > 0.99
    timed = found["words"]
    assert timed[0] == {"word": "Hello", "start": 0.16, "end": 0.48} and timed[1]["word"] == "there,"
    with_aligner = [*words, "--language", "en", "--aligner", str(aligner)]
    for ending, start in (("srt", "1\n00:00:00,160 -->"), ("TextGrid", 'File type = "ooTextFile"')):
        for command in (aligning, with_aligner):
            assert main([*command, "-o", str(out := tmp_path / f"odd.{ending}")]) == 0
            assert out.read_text().startswith(start)
        assert main([*with_aligner, "--format", ending.lower(), "-o", f"{tmp_path}/"]) == 0
        assert capsys.readouterr().out.endswith(f"{out}\n")
    assert "what is said" not in capsys.readouterr().err
    text.write_text("A completely different sentence about submarines and cheese.")
    assert main(aligning) == 0
    others = capsys.readouterr()
    assert json.loads(others.out)["confidence"] < 0.5 and "44 % of the times ran backwards" in others.err
    assert json.loads(others.out)["words"][-1]["end"] > 3.38  # the sound ends before
    assert main([*aligning, "-o", str(out)]) == 0
    assert len(re.findall(r'text = ".+"', out.read_text())) == 8
    assert max(map(float, re.findall(r"xmax = (\S+)", out.read_text()))) == 53_997 / 16_000
    assert main([*aligning, "--language", "da"]) == 0
    assert "language da: the aligner was trained on" in capsys.readouterr().err
    aligned = [*words, "--language", "en", "--format", "json", "--aligner", str(aligner)]
    assert main([*aligned, "--timestamps"]) == 0
    assert json.loads(capsys.readouterr().out)["words"] == timed
    assert main(aligned) == 0 and "--aligner: has no effect" in capsys.readouterr().err


def test_what_the_commands_refuse_is_one_line(
    exports: ExportCache,
    sounds: dict[str, np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asr, _ = exported(exports, "asr", "onnx", tmp_path)
    aligner, _ = exported(exports, "aligner", "onnx", tmp_path)
    recording, text = tmp_path / "odd.wav", tmp_path / "odd.txt"
    write_recording(recording, sounds["odd"], 16_000)
    text.write_text("Hello there.")
    words = ["transcribe", str(recording), "--bundle", str(asr), "--gain", "off"]
    aligning = ["align", str(recording), "--text", str(text), "--bundle", str(aligner)]
    write_recording(short := tmp_path / "short.wav", sounds["odd"][:200], 16_000)
    for arguments, reason in (
        (["transcribe", str(short), *words[2:]], "200 samples, expected more than 200; it holds no word"),
        (["align", str(short), *aligning[2:]], "200 samples, expected more than 200; it holds no word"),
        ([*words, "--language", "xx"], "--language 'xx': this model does not have it; it has auto, zh, en"),
        ([*words, "--format", "srt"], "no times of words"),
        ([*words, "--context", "word " * 500], "--context: has"),
        ([*words[:2], "--bundle", str(aligner)], "for forced alignment, expected one for speech to text"),
        ([*aligning[:-1], str(asr)], "for speech to text, expected one for forced alignment"),
        (
            [*aligning, "-o", str(tmp_path / "odd.txt2")],
            "expected the extension json, srt, vtt, textgrid; or",
        ),
        (["transcribe", "-", "--live", "--format", "textgrid"], "--format textgrid is for recordings"),
        (["align", "-", "--text", "-", *aligning[4:]], "text and sound are both stdin"),
        (
            [*words, "--aligner", str(asr), "--format", "vtt"],
            "for speech to text, expected one for forced alignment",
        ),
        (["transcribe", "-", "--live", "--aligner", str(aligner)], "--aligner is for recordings"),
        ([*aligning[:3], str(tmp_path / "none"), *aligning[4:]], "--text"),
    ):
        assert main(arguments) == 2 and reason in error_line(capsys)


@pytest.mark.parametrize("target", TARGETS)
def test_quantised_weights_of_all_products_are_stored(tmp_path: Path, target: str) -> None:
    """A converter that rewrites a product, here the first one behind the convolutions, would lose one."""
    opened = open_target(target)
    request = ExportRequest(quant=opened.default_recipe)
    model = Model(resolve(Source(micro_checkpoint("qwen3_asr")), request), opened.layout)
    for name in model.resolved.graphs:
        opened.lower(model.graph(name), tmp_path)
        opened.check(model.graph(name), tmp_path)
