"""Bundles made with the command line: reproducible, reused, not overwritten, equal speech on all targets."""

import contextlib
import copy
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile
import torch
from bundle_options import QUANT
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bundle_bytes import contents

from bundle.errors import ExportError, IntegrityError, UsageError
from bundle.manifest import ExportRequest, Manifest, read_manifest
from export.__main__ import main as export
from export.bundle_readme import bundle_readme
from export.estimate import estimate
from export.job import make_job
from export.memory import check_memory
from export.resolve import Source, resolve
from export.targets import open_target
from runtime.__main__ import main as runtime
from runtime.batching import Status
from runtime.engines.base import unique_caches
from runtime.opening import open_bundle

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TEXT = "Hello there, this is a sentence."


LOWER = """
import sys
from pathlib import Path
from bundle.manifest import Bundle
from export.model import Model
from export.resolve import Source, resolve
from export.targets import target_of_job

source, bundle, out, *graphs = sys.argv[1:]
job = Bundle(Path(bundle)).job
target = target_of_job(job)
model = Model(resolve(Source(Path(source)), job.request), target.layout, job.compute_precision)
for name in graphs:
    target.lower(model.graph(name), Path(out))
"""


def test_the_same_inputs_give_the_same_bytes(bundles, checkpoint, tmp_path):
    """ExecuTorch programs with states, of another process, with another hash seed and number of threads.

    An ONNX export that is resumed in such a process, and Core ML, have tests of their own.
    """
    command = [sys.executable, "-c", LOWER, str(checkpoint), str(bundles / "executorch"), str(tmp_path)]
    threads = str(1 + torch.get_num_threads())
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    command += ["backbone", "codec"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    found = contents(tmp_path)
    assert found.keys() == {"backbone.pte", "codec.pte"}
    for name, content in found.items():
        assert content == (bundles / "executorch" / name).read_bytes(), name


def test_an_up_to_date_bundle_is_reported_and_not_exported_again(bundles, capsys):
    before = contents(bundles / "onnx")
    assert export(["--target", "onnx", *QUANT, "--out", str(bundles / "onnx"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["made"] is False
    assert contents(bundles / "onnx") == before


@pytest.mark.parametrize(
    "arguments",
    [["--quant", "w8"], [*QUANT, "--first-frame", "audio_token"], [*QUANT, "--cache-length", "64"]],
)
def test_an_existing_different_bundle_is_replaced_only_with_force(bundles, capsys, arguments):
    before = contents(bundles / "onnx")
    assert export(["--target", "onnx", *arguments, "--out", str(bundles / "onnx")]) == 2
    line = capsys.readouterr().err
    assert "force" in line and " there and " in line
    assert contents(bundles / "onnx") == before


def test_opening_an_unverified_bundle_logs_a_warning(onnx_copy, caplog):
    from bundle_options import edit_manifest

    edit_manifest(onnx_copy, lambda m: m["verification"].update(status="unverified"))
    with caplog.at_level("WARNING"):
        open_bundle(onnx_copy)
    assert "unverified" in caplog.text


def test_the_same_seed_gives_similar_speech_on_two_targets(bundles):
    pieces = {
        target: np.concatenate(list(open_bundle(bundles / target).speak(TEXT, seed=7)))
        for target in ("onnx", "executorch")
    }
    again = np.concatenate(list(open_bundle(bundles / "onnx").speak(TEXT, seed=7)))
    np.testing.assert_array_equal(pieces["onnx"], again)
    other = np.concatenate(list(open_bundle(bundles / "onnx").speak(TEXT, seed=8)))
    assert not np.array_equal(other[:1920], again[:1920])
    # The two targets quantise activations differently, and their codes diverge with time. The first frame has
    # no history yet.
    first = [audio[:1920] for audio in pieces.values()]
    assert np.corrcoef(*first)[0, 1] > 0.9


@pytest.mark.parametrize("chunk", [1, 2, 5, 1000])
def test_the_chunk_size_does_not_change_the_speech(bundles, chunk):
    task = open_bundle(bundles / "executorch")
    whole = np.concatenate(list(task.speak(TEXT, seed=3)))
    pieces = list(task.speak(TEXT, seed=3, chunk_frames=chunk))
    assert all(len(piece) == chunk * 1920 for piece in pieces[:-1])
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_interleaved_utterances_do_not_affect_each_other(bundles):
    for target in ("onnx", "executorch"):
        task = open_bundle(bundles / target)
        separate = [list(task.speak(TEXT, seed=seed, chunk_frames=1, max_frames=6)) for seed in (1, 2)]
        mixed = zip(
            *(task.speak(TEXT, seed=seed, chunk_frames=1, max_frames=6) for seed in (1, 2)),
            strict=False,
        )
        for pair, first, second in zip(mixed, *separate, strict=False):
            np.testing.assert_array_equal(pair[0], first)
            np.testing.assert_array_equal(pair[1], second)


TEXTS = [
    "Hello there.",
    "Another one, and a longer one at that.",
    "A third.",
    "Four of them now.",
    "And a fifth waits until one is done.",
]


def collected(pieces, count: int) -> list[np.ndarray]:
    found: list[list[np.ndarray]] = [[] for _ in range(count)]
    for index, samples in pieces:
        found[index].append(samples)
    return [np.concatenate(each) for each in found]


def test_batched_texts_sound_like_each_text_spoken_separately(bundles):
    task = open_bundle(bundles / "onnx")
    separate = [np.concatenate(list(task.speak(text, seed=4, max_frames=3))) for text in TEXTS]
    batched = collected(task.speak_all(TEXTS, seed=4, max_frames=3), len(TEXTS))
    assert [len(samples) for samples in batched] == [len(samples) for samples in separate]
    # Another order of sums may change a code. The first frame has no history yet and identifies its text.
    correlation = np.corrcoef([samples[:1920] for samples in (*batched, *separate)])[
        : len(TEXTS), len(TEXTS) :
    ]
    assert (correlation.argmax(axis=1) == range(len(TEXTS))).all() and (correlation.diagonal() > 0.9).all()


@pytest.mark.parametrize("target", ["onnx", "executorch", "coreml"])
def test_texts_in_one_slot_are_bit_identical_to_each_text_spoken_separately(bundles, target):
    """Texts follow each other in one slot: with an engine of batch size 1, or with `slots=1`."""
    task = open_bundle(bundles / target)
    separate = [np.concatenate(list(task.speak(text, seed=4, max_frames=2))) for text in TEXTS[:3]]
    found = collected(task.speak_all(TEXTS[:3], seed=4, max_frames=2, slots=1 if target == "onnx" else 4), 3)
    for batched, expected in zip(found, separate, strict=True):
        np.testing.assert_array_equal(batched, expected)


def test_slots_of_a_batched_stream_have_separate_states(bundles):
    stream = open_bundle(bundles / "onnx").engine.batched(3)
    rows = {
        name: np.full((1, *state.shape[1:2], 4, *state.shape[3:]), 2.0, np.float32)
        for name, state in unique_caches(stream.signatures.values()).items()
    }
    for index in range(3):
        stream.slot(index).load_rows(rows)
    stream.slot(1).reset()
    kept = [
        max(float(array.max()) for array in stream.slot(index).save_rows(4).values()) for index in range(3)
    ]
    assert kept == [2.0, 0.0, 2.0]
    dim = stream.signatures["prefill"].inputs[0].shape[-1]
    inputs = {"embeddings": np.zeros((3, 2, dim), np.float32), "position": np.zeros(3, np.int64)}
    with pytest.raises(UsageError, match="prefill: one call serves at most 1"):
        stream.run("prefill", inputs)


def test_invalid_texts_are_refused_before_the_first_samples(bundles):
    task = open_bundle(bundles / "onnx")
    wrong = (
        ([], "no text; expected a list"),
        ("One.", "one str; expected a list"),
        (["Fine.", " "], "text 1: .*nothing to speak"),
        (["Fine.", None], "text 1: .*expected a str"),
    )
    for texts, message in wrong:
        with pytest.raises(UsageError, match=message):
            next(iter(task.speak_all(texts)))
    for name, value in (("slots", 0), ("max_frames", 0), ("chunk_frames", 0), ("seed", -1)):
        with pytest.raises(UsageError, match=f"{name} {value}: expected (an int of )?at least"):
            next(iter(task.speak_all(["Fine."], **{name: value})))


@pytest.mark.parametrize("target", ["onnx", "executorch", "coreml"])
def test_threads_that_share_a_task_do_not_affect_each_other(bundles, target):
    """The threads share one bundle and its weights, and speak at the same time."""
    task = open_bundle(bundles / target)

    def spoken(seed: int) -> np.ndarray:
        return np.concatenate(list(task.speak(TEXT, seed=seed, chunk_frames=1, max_frames=4)))

    separate = [spoken(seed) for seed in (1, 2, 3)]
    with ThreadPoolExecutor(3) as pool:
        for batched, expected in zip(pool.map(spoken, (1, 2, 3)), separate, strict=True):
            np.testing.assert_array_equal(batched, expected)


def test_speech_stops_at_the_frame_limit(bundles):
    """One frame, because the rounding of random weights decides whether they end the speech at the next."""
    pieces = open_bundle(bundles / "onnx").speak(TEXT, seed=3, max_frames=1)
    samples, status = 0, None
    while status is None:
        try:
            samples += len(next(pieces))
        except StopIteration as end:
            status = end.value
    assert (samples, status) == (1920, Status.LIMIT)


def test_say_writes_the_same_samples_to_a_file_and_to_stdout(bundles, tmp_path):
    base = [
        sys.executable,
        "-m",
        "runtime",
        "say",
        TEXT,
        "--bundle",
        str(bundles / "onnx"),
        "--seed",
        "7",
        "--voice",
        "fr_male",
    ]
    streamed = subprocess.run(
        [*base, "--stream", "--chunk-frames", "2"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    subprocess.run([*base, "-o", str(tmp_path / "a.wav")], cwd=ROOT, check=True, capture_output=True)
    samples, rate = soundfile.read(tmp_path / "a.wav", dtype="int16")
    assert rate == 24000
    np.testing.assert_array_equal(np.frombuffer(streamed, "<i2"), samples)


def test_say_speaks_a_sentence_while_the_next_one_arrives(bundles):
    """Samples come before stdin is closed; all of them equal those of the whole text."""
    text = (
        "This sentence is long enough to be spoken before the next one is complete. And this is the next one."
    )
    base = [sys.executable, "-m", "runtime", "say", "--bundle", str(bundles / "onnx"), "--stream"]
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


def test_the_readme_of_a_bundle_names_every_tensor(bundles):
    for target in ("onnx", "executorch", "coreml"):
        text = (bundles / target / "README.md").read_text()
        for component in read_manifest(bundles / target).job.components:
            prefix = f"{component.graph}_" if target == "coreml" else ""  # packages name their states so
            for name in (
                *(t.name for t in (*component.signature.inputs, *component.signature.outputs)),
                *(prefix + state.name for state in component.signature.states),
            ):
                assert f"| {name} |" in text


def test_the_readme_of_a_bundle_mentions_caches_only_where_there_are_some(checkpoint):
    target = open_target("onnx")
    job = make_job(resolve(Source(checkpoint), ExportRequest()), target, "tiny")
    manifest = Manifest(job=job, files={}, tokenizer=(), voices={}, weight_errors={})
    with_caches = bundle_readme(manifest, "Call it once.", target)
    assert "Call it once.\n\n## Components\n" in with_caches
    assert "caches hold 2048 rows" in with_caches
    components = tuple(entry for entry in job.components if not entry.signature.cache)
    without_job = job.model_copy(update={"components": components})
    without = bundle_readme(manifest.model_copy(update={"job": without_job}), "Call it once.\n", target)
    assert "Call it once.\n\n## Components\n" in without and "caches hold" not in without


@dataclass(frozen=True)
class Measured:
    """Figures of exports of the published size, by target: bytes at the peak, and seconds with one mode of
    verification.

    `weights` counts all graphs: a head that is also a table counts twice, folded constants do not count.
    """

    family: str
    arguments: str
    tensors: int
    weights: int
    targets: dict[str, tuple[float, float]]


TTS = {"onnx": (7.5e9, 197), "executorch": (8.5e9, 341), "coreml": (9.6e9, 275)}
REALTIME = {"onnx": (9.0e9, 263), "executorch": (11.1e9, 547), "coreml": (10.7e9, 557)}
MEASURED = [
    Measured("voxtral_tts", "--quant w4", 386, 4_002_353_392 - 3072 * 3072, TTS),
    Measured(
        "voxtral_realtime",
        "--quant 8da4w --cache-length 2048 --streaming",
        711,
        4_429_679_360 + 131072 * 3072 - 26 * 2 * 32 * 3072,
        REALTIME,
    ),
]


@pytest.mark.parametrize("measured", MEASURED, ids=lambda measured: measured.family)
def test_dry_run_of_the_published_shapes_reads_no_weights_and_is_within_25_percent(
    measured, tmp_path, monkeypatch, capsys
):
    """Sparse files replace 8 GB of weights, because only shapes are read."""
    from model.checkpoint import expected_tensors
    from model.families import open_family

    family, folder = open_family(measured.family), tmp_path / "full"
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps(family.synthetic.config("full")))
    shapes = expected_tensors(family.build_root(family.load_config(folder)))
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (folder / "consolidated.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    assert len(shapes) == measured.tensors
    monkeypatch.setattr("export.estimate.speed", lambda: 1.0)  # of the machine that was measured
    monkeypatch.setattr("export.estimate.modes", lambda *_: [None])  # one, as when it was measured
    arguments = [
        "--checkpoint",
        str(folder),
        "--target",
        ",".join(measured.targets),
        *measured.arguments.split(),
        "--dry-run",
        "--json",
    ]
    assert export([*arguments, "--out", str(tmp_path / "out")]) == 0
    for result in json.loads(capsys.readouterr().out):
        assert sum(graph["weights"] for graph in result["graphs"].values()) == measured.weights
        assert 2.2e9 < result["disk_bytes"] < 3.2e9
        peak, seconds = measured.targets[result["target"]]
        assert result["memory_bytes"] == pytest.approx(peak, rel=0.25) and result["seconds"] == pytest.approx(
            seconds, rel=0.25
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("recipe", "modes"), [("w4", 2), ("none", 1)])
def test_an_estimate_counts_every_mode_of_verification(checkpoint, recipe, modes):
    """ONNX with integer activations is also verified with float activations."""
    resolved, target = resolve(Source(checkpoint), ExportRequest(quant=recipe)), open_target("onnx")
    times = [estimate(resolved, target, verifies)["reference_seconds"] for verifies in (True, False)]
    assert times[0] - times[1] == pytest.approx(modes * target.costs.verification)


def test_an_export_without_enough_memory_is_refused_before_it_starts(tmp_path, monkeypatch, capsys):
    free = psutil.virtual_memory()._replace(available=2**20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert export(["--target", "onnx", "--out", str(tmp_path / "out")]) == 3
    error = capsys.readouterr().err
    assert "needs about" in error and "0.0 GB are free" in error and not list(tmp_path.iterdir())


def test_an_up_to_date_bundle_is_accepted_without_free_memory(bundles, monkeypatch, capsys):
    free = psutil.virtual_memory()._replace(available=2**20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    before = read_manifest(bundles / "onnx")
    assert export(["--target", "onnx", *QUANT, "--out", str(bundles / "onnx")]) == 0
    assert read_manifest(bundles / "onnx") == before


@pytest.mark.parametrize(
    ("limit", "cached", "free"), [(2**30, 0, 2**20), (2**30, 2**28, 2**28 + 2**20), ("max", 0, float("inf"))]
)
def test_the_memory_limit_of_a_container_is_respected(tmp_path, monkeypatch, limit, cached, free):
    for name, value in (
        ("max", limit),
        ("current", 2**30 - 2**20),
        ("stat", f"anon 5\ninactive_file {cached}\nactive_file 0"),
    ):
        (tmp_path / f"memory.{name}").write_text(f"{value}\n")
    monkeypatch.setattr("export.memory.CGROUP", tmp_path)
    check_memory(min(free, 2**21), "model", True)
    if free == float("inf"):
        return
    with pytest.raises(
        ExportError, match=r"model: needs about .* GB are free; .*; an export without verification needs less"
    ):
        check_memory(free + 1, "model", True)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["x" * 300, "../x", 2**70, "float32", "T"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def places(content, path=()) -> list[tuple]:
    """Paths of all keys and indices of a JSON value."""
    keys = (
        content.keys()
        if isinstance(content, dict)
        else range(len(content))
        if isinstance(content, list)
        else ()
    )
    return [place for key in keys for place in ((*path, key), *places(content[key], (*path, key)))]


def changed(content, place: tuple, value, remove: bool):
    content = copy.deepcopy(content)
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    if remove:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return content


@pytest.fixture(scope="module")
def tampered(bundles, tmp_path_factory) -> Path:
    return Path(shutil.copytree(bundles / "onnx", tmp_path_factory.mktemp("tampered") / "bundle"))


@settings(max_examples=75)
@given(st.data())
def test_any_change_of_a_manifest_works_or_is_a_one_line_error(bundles, tampered, data):
    """Commands succeed or print one line and return its exit code. They never print a traceback."""
    content = json.loads((bundles / "onnx" / "manifest.json").read_text())
    content["verification"]["rows"] = []  # most fields, which no command reads
    place = data.draw(st.sampled_from(places(content)))
    (tampered / "manifest.json").write_text(
        json.dumps(changed(content, place, data.draw(VALUES), data.draw(st.booleans())))
    )
    for command in (
        ["info"],
        ["voices"],
        ["say", "Hi.", "--max-frames", "2", "--no-check", "-o", str(tampered.parent / "o.wav"), "--bundle"],
    ):
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            code = runtime([*command, str(tampered)])
        lines = [line for line in stderr.getvalue().splitlines() if line.startswith("voxport: error:")]
        assert code in (0, 2, 3, 5) and len(lines) == (code != 0)


@pytest.mark.parametrize("text", ["{", "[]", "null", "1" * 5000, "\xff", '{"a": 1', "[" * 100_000])
def test_a_file_that_is_not_a_manifest_raises_integrity_error(tampered, text):
    (tampered / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(IntegrityError, match=r"manifest\.json"):
        read_manifest(tampered)
