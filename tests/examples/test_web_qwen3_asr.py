"""Qwen3-ASR with the modules of `examples/web`: beside voxport, and with planted faults."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from support.programs import need
from support.runners import DONE, READY, bundle_url, check_refused, check_vectors, run_script

import voxport
from voxport.bundle.constants.qwen3_asr import CODES
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import VECTORS, Bundle
from voxport.runtime.engines import open_engine
from voxport.runtime.families import open_family, read_constants
from voxport.runtime.families.qwen3_asr.text import parse_answer
from voxport.runtime.speech_to_text import SpeechToText
from voxport.runtime.vectors import Values, Vectors, choices_of, encoded, read_vectors, values_of

RATE = 16_000
SECONDS = 4.94  # windows of 2, 2 and 0.94 s in the bundle; the last one has 94 frames, which give 12 rows
# A mistake of a runner: the file, its code, what stands there then, and the first value that shows it
FAULTS = (
    ("mel.js", "most - RANGE", "most - 2 * RANGE", "mel"),
    ("qwen3_asr.js", "Math.ceil(rest / 8)", "Math.floor(rest / 8)", "audio_embeds"),
    (
        "qwen3_asr.js",
        "frames: [[window.length], [1]]",
        "frames: [[chunks * c.chunk_frames], [1]]",
        "audio_embeds",
    ),
    ("qwen3_asr.js", "encode(`system\\n${context}`)", "encode(context)", "prompt"),
    ("qwen3_asr.js", "sound[taken++]", "sound[++taken]", "prefill_logits"),
    ("decoder.js", "[[this.position], [1]]", "[[Math.max(0, this.position - 1)], [1]]", "last_logits"),
)
HOSTILE = (
    ("qwen3_asr", "constants/kind", "aligner", "an aligner gives times to words"),
    ("qwen3_asr", "constants/chunk_frames", 0, "chunk_frames is 0, expected 1 to 4096"),
    ("qwen3_asr", "constants/window_chunks", 10**9, "window_chunks is 1000000000, expected 1 to 1024"),
    ("qwen3_asr", "components/prefill/signature/dims/S/1", 0, "S is 0, expected 1 to 16777216"),
)
TRANSCRIBE = """import {readFile} from "node:fs/promises";
import * as ort from "onnxruntime-web";
import {open} from "./runner.js";
const [folder, recording, options] = process.argv.slice(1);
const source = {name: folder, read: async path => new Uint8Array(await readFile(`${folder}/${path}`))};
const runner = await open(ort, source, {executionProviders: ["wasm"]});
const samples = Float32Array.from(new Int16Array((await readFile(recording)).buffer), each => each / 32768);
let text = "";
for await (text of runner.transcribe([samples.slice(0, 999), samples.slice(999)], JSON.parse(options)));
console.log(JSON.stringify(text));
"""
PARSE = """import {QwenASR} from "./qwen3_asr.js";
const tokenizer = {bytes: text => new TextEncoder().encode(text)};
const runner = Object.assign(new QwenASR(), {tokenizer, constants: {}});
const found = JSON.parse(process.argv[1]).map(([answer, language]) => {
  const text = runner.textOf([answer], language ?? undefined, true);
  return [runner.language, text];
});
console.log(JSON.stringify(found));
"""
ANSWERS: tuple[tuple[str, str | None], ...] = (
    ("language English<asr_text>Hello there.", None),
    ("\nlanguage Chinese\n<asr_text> \u4f60\u597d ", None),
    ("language None<asr_text>", None),
    ("language None", None),
    ("no tag", None),
    ("", None),
    ("Bonjour.", "French"),
    ("language English<asr_text>" + "a" * 21 + "b" * 20 + " and" * 20 + " go", None),
    ("ha " * 30, "English"),
)
CUT = """import {divide} from "./qwen3_asr.js";
const samples = Float32Array.from({length: 5000}, (_, i) => (i >= 1750 && i < 1790 ? 0 : 1 + i));
const pieces = Array.from(divide(samples, 20, 100), piece => Array.from(piece));
console.log(JSON.stringify([pieces.map(piece => piece.length), pieces.flat().join() === samples.join()]));
"""


@pytest.fixture(scope="module")
def bundle(family_bundles: dict[str, Path]) -> Path:
    return family_bundles["qwen3_asr"]


@pytest.fixture(scope="module")
def samples(speech: Path) -> np.ndarray:
    """int16 [n], of speech that goes beyond two windows."""
    found, rate = soundfile.read(speech, dtype="int16")
    resampled = soxr.resample(found, rate, RATE)
    return np.resize(resampled, round(SECONDS * RATE)).astype(np.int16)


@pytest.fixture(scope="module")
def longer(bundle: Path, samples: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle with vectors of this recording, as voxport computes them, within the same tolerances."""
    copy = shutil.copytree(bundle, tmp_path_factory.mktemp("longer") / "bundle")
    opened, kept = Bundle(copy), read_vectors(Bundle(copy))
    workload, constants = open_family(opened.job.family).vectors, read_constants(opened.job)
    assert workload
    request: Json = {"recording": encoded(samples), "rate": RATE}
    computed = workload.run(open_engine(opened), opened, constants, request)
    values = list[Values]()
    for known in kept.values:
        array = computed[known.name]
        if known.tolerance:
            exact = values_of(known.name, array, array, 0, 0)
            values.append(exact.model_copy(update={"tolerance": known.tolerance}))
        else:
            values.append(choices_of(known.name, array, array, known.name == workload.chosen))
    request["tokens"] = computed["tokens"].tolist()
    (copy / VECTORS).write_text(Vectors(request=request, values=tuple(values)).model_dump_json())
    return copy


def computed(folder: Path, bundle: Path, out: Path) -> str:
    subprocess.run([need("node"), "node.js", str(bundle), str(out)], cwd=folder, check=True)
    return out.read_text()


def test_it_computes_the_vectors_of_a_recording_of_several_windows(
    folder: Path, longer: Path, tmp_path: Path
) -> None:
    check_vectors(longer, computed(folder, longer, tmp_path / "out.json"), tmp_path)


@pytest.mark.parametrize(("file", "code", "wrong", "value"), FAULTS)
def test_a_mistake_of_a_runner_fails_the_vectors(
    folder: Path,
    longer: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    code: str,
    wrong: str,
    value: str,
) -> None:
    faulty = tmp_path / "page"
    shutil.copytree(folder, faulty, ignore=shutil.ignore_patterns("bundles", "node_modules"))
    (faulty / "node_modules").symlink_to(folder / "node_modules")
    module = (faulty / file).read_text()
    assert module.count(code) == 1
    (faulty / file).write_text(module.replace(code, wrong))
    check_vectors(longer, computed(faulty, longer, tmp_path / "out.json"), tmp_path, code=4)
    assert f"differs from {value} on: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("language", "context"), [("auto", ""), ("french", ""), ("auto", "Kubernetes, \u00e9tcd")]
)
def test_it_transcribes_as_voxport(
    folder: Path, bundle: Path, samples: np.ndarray, tmp_path: Path, language: str, context: str
) -> None:
    (tmp_path / "samples").write_bytes(samples.tobytes())
    options = json.dumps({"language": language, "context": context})
    found = run_script(folder, TRANSCRIBE, bundle, tmp_path / "samples", options)
    task = voxport.open(bundle)
    assert isinstance(task, SpeechToText)
    code = CODES.get(language.title())
    transcription = task.begin(language=code, context=context)
    deltas = (*transcription.feed(samples.astype(np.float32) / 32768), *transcription.finish())
    assert found == "".join(delta.text for delta in deltas) and found


@pytest.mark.parametrize("hostile", HOSTILE, indirect=True)
def test_a_number_beyond_its_limits_is_one_line(
    folder: Path, hostile: tuple[Path, str], tmp_path: Path
) -> None:
    check_refused(folder, *hostile, tmp_path)


def test_it_reads_an_answer_as_voxport(folder: Path) -> None:
    found = run_script(folder, PARSE, json.dumps(ANSWERS))
    assert found == [list(parse_answer(*answer)) for answer in ANSWERS]


def test_it_divides_a_long_recording_where_it_is_quiet(folder: Path) -> None:
    lengths, is_whole = run_script(folder, CUT)
    assert is_whole and all(length <= 2000 for length in lengths)
    assert 1750 < lengths[0] < 1790


def test_the_page_transcribes_a_file_and_what_it_recorded(
    url: str, page: Any, family_bundles: dict[str, Path], samples: np.ndarray, tmp_path: Path
) -> None:
    page.goto(f"{url}/?bundle={bundle_url(url, family_bundles, 'qwen3_asr')}")
    page.wait_for_function(READY)
    recording = tmp_path / "recording.wav"
    soundfile.write(recording, samples, RATE)
    page.select_option("#language", "English")
    page.set_input_files("#recording", str(recording))
    page.wait_for_function(
        "document.getElementById('status').textContent.startsWith('English: 4.9 s of sound in')"
    )
    text = page.inner_text("#transcript")
    assert text and not page.inner_text("#error")
    page.click("text=Listen to the microphone")
    page.wait_for_function("document.getElementById('status').textContent.includes('recording')")
    page.wait_for_timeout(1000)
    page.click("#stop")
    page.wait_for_function("document.getElementById('status').textContent.includes('s of sound in')")
    page.wait_for_function(DONE)
    seconds = float(page.inner_text("#status").removeprefix("English: ").partition(" s of sound")[0])
    assert 0.5 < seconds < 60 and not page.inner_text("#error")  # random weights may find no words in it
