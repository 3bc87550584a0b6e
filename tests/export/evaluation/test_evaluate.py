"""`voxport evaluate` and `voxport sweep` on bundles of random weights, and on the trained recogniser."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.commands import error_line
from support.runtime.opened_tasks import open_speech

from voxport.__main__ import main as voxport
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.export.evaluation.run import evaluation_options, open_eager
from voxport.export.evaluation.sentences import HELD_OUT, Sentence, read_sentences
from voxport.export.evaluation.speech import ForcedComparison, SpokenText, speak_part, speak_text
from voxport.export.evaluation.sweep import ALL, UNCALIBRATED, parts_to_sweep, quantised_only, sweep
from voxport.export.resolve import Resolved, Source
from voxport.export.targets import target_of_job
from voxport.export.verify.manifest_check import check_manifest
from voxport.model.embedded import trained_checkpoint
from voxport.quantize.calibration import Calibration, StoredWeights, save_calibration
from voxport.runtime.text_to_speech import TextToSpeech

TEXT = "Hello there."


@pytest.fixture(scope="module")
def bundle(bundles: Path) -> Bundle:
    return Bundle(bundles / "onnx")


@pytest.fixture(scope="module")
def resolved(bundle: Bundle, checkpoint: Path) -> Resolved:
    return check_manifest(bundle, Source(checkpoint), target_of_job(bundle.job))


@pytest.fixture(scope="module")
def full(bundle: Bundle, resolved: Resolved) -> TextToSpeech:
    task = open_eager(bundle, resolved.in_full_precision(), target_of_job(bundle.job))
    assert isinstance(task, TextToSpeech)
    return task


@pytest.fixture(scope="module")
def full_speech(full: TextToSpeech) -> SpokenText:
    return speak_text(full, Sentence("one", TEXT), 0, {})


def test_free_speech_is_that_of_the_task(bundle: Bundle) -> None:
    """Driven frame by frame, the bundle says what `speak` says."""
    task = open_speech(bundle.folder)
    text = f"{'one ' * 40}two. {'three ' * 30}four."  # more than a part holds
    found = speak_text(task, Sentence("two", text), 3, {})
    assert len(found.parts) == 2
    assert np.array_equal(found.samples, np.concatenate(list(task.speak(text, seed=3, chunk_frames=64))))


def test_forced_codes_are_fed_back(full: TextToSpeech, full_speech: SpokenText) -> None:
    """After its own codes a model chooses the same again, and after others it does not."""
    (part,) = full_speech.parts
    chosen, request = part.chosen, part.request
    assert np.array_equal(speak_part(full, request, chosen).chosen, chosen)
    other = chosen.copy()
    other[0, 0] = 2 if chosen[0, 0] != 2 else 3
    found = speak_part(full, request, other).chosen
    assert np.array_equal(found[0], chosen[0])
    assert not np.array_equal(found[1:], chosen[1:])


def test_full_precision_beside_itself_is_equal(full: TextToSpeech, full_speech: SpokenText) -> None:
    compared = ForcedComparison()
    compared.add(full, full_speech)
    assert compared.figures() == {"codes_equal": 1.0, "other_codes_equal": 1.0, "log_mel_db": 0.0}


def test_a_quantised_bundle_differs(bundle: Bundle, full_speech: SpokenText) -> None:
    compared = ForcedComparison()
    compared.add(open_speech(bundle.folder), full_speech)
    figures = compared.figures()
    assert figures["log_mel_db"] > 0
    assert figures["other_codes_equal"] < 1


def test_parts_cover_the_quantised_weights_once(resolved: Resolved) -> None:
    *graphs, all_parts = [part for part in parts_to_sweep(resolved, layers=False)]
    assert all_parts.name == ALL
    assert sum(part.weights for part in graphs) == all_parts.weights
    layered = parts_to_sweep(resolved, layers=True)
    inside = [part for part in layered if "layers." in part.name]
    by_graph = {part.name: set(next(iter(part.paths.values()))) for part in graphs}
    for part in inside:
        ((graph, paths),) = part.paths.items()
        assert set(paths) <= by_graph[graph]  # equal if a graph has one layer


def test_a_part_alone_is_quantised_as_in_the_bundle(resolved: Resolved) -> None:
    part = parts_to_sweep(resolved, layers=False)[0]
    ((graph, paths),) = part.paths.items()
    alone = quantised_only(resolved, part)
    for path in resolved.source.quantizable:
        for name, recipe in alone.recipes.items():
            expected = resolved.recipes[graph] if name == graph and path in paths else None
            for is_table in (False, True):
                scheme = expected.scheme_for(path, is_table) if expected else None
                assert recipe.scheme_for(path, is_table) == scheme


def test_the_command_writes_a_row_for_each_sentence(
    bundle: Bundle, realtime_bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, sentences = tmp_path / "found.json", tmp_path / "sentences.txt"
    sentences.write_text(f"{TEXT}\nGood morning.\n")
    command = ["evaluate", str(bundle.folder), "--sentences", str(sentences), "-o", str(out)]
    assert voxport([*command, "--recogniser", str(realtime_bundles / "onnx")]) == 0
    assert "word error rate in full precision" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert [row["text"] for row in found["rows"]] == [TEXT, "Good morning."]
    assert found["bytes"] == bundle.size
    assert {"wer", "wer_full", "codes_equal", "log_mel_db", "not_ended"} < found["figures"].keys()
    assert voxport([*command, "--alone", "--recogniser", str(realtime_bundles / "onnx")]) == 0
    assert "wer_full" not in json.loads(out.read_text())["figures"]


def test_core_ai_is_evaluated_as_it_is_verified(
    bundles: Path, realtime_bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, sentences = tmp_path / "found.json", tmp_path / "sentences.txt"
    sentences.write_text(TEXT)
    command = ["evaluate", str(bundles / "coreai"), "--sentences", str(sentences), "-o", str(out), "--alone"]
    assert voxport([*command, "--recogniser", str(realtime_bundles / "onnx")]) == 0
    engine = json.loads(out.read_text())["engine"]
    assert engine.endswith("a copy with float32 sums") and f"executed by {engine}" in capsys.readouterr().out


def test_sentences_are_spoken_several_times(bundle: Bundle, realtime_bundles: Path, tmp_path: Path) -> None:
    """Each time with other random numbers."""
    out, sentences = tmp_path / "found.json", tmp_path / "sentences.txt"
    sentences.write_text(TEXT)
    command = ["evaluate", str(bundle.folder), "--sentences", str(sentences), "-o", str(out), "--alone"]
    assert voxport([*command, "--readings", "2", "--recogniser", str(realtime_bundles / "onnx")]) == 0
    first, second = json.loads(out.read_text())["rows"]
    assert first["text"] == second["text"] == TEXT
    assert first["transcript"] != second["transcript"]


def test_the_sweep_has_a_row_for_each_part(
    bundle: Bundle, realtime_bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, sentences = tmp_path / "sweep.json", tmp_path / "sentences.txt"
    sentences.write_text(TEXT)
    command = ["sweep", str(bundle.folder), "--sentences", str(sentences), "-o", str(out)]
    assert voxport([*command, "--recogniser", str(realtime_bundles / "onnx")]) == 0
    assert "no part" in capsys.readouterr().out
    nothing, *others = json.loads(out.read_text())
    assert (nothing["codes_equal"], nothing["log_mel_db"]) == (1.0, 0.0)
    assert others[-1]["part"] == ALL
    assert all(row["log_mel_db"] > 0 for row in others if row["part"] in ("codec", ALL))


def test_the_sweep_of_a_calibrated_bundle_also_has_the_recipe_without_calibration(
    bundle: Bundle, resolved: Resolved, realtime_bundles: Path, tmp_path: Path
) -> None:
    """Statistics of nothing change nothing."""
    save_calibration(tmp_path / "statistics", StoredWeights())
    calibrated = replace(resolved, calibration=Calibration(tmp_path / "statistics"))
    recogniser = str(realtime_bundles / "onnx")
    options = evaluation_options(bundle.job.family, [Sentence("one", TEXT)], recogniser)
    *_, with_it, without = sweep(bundle, calibrated, target_of_job(bundle.job), options, layers=False)
    assert (with_it["part"], without["part"]) == (ALL, UNCALIBRATED)
    assert {**with_it, "part": UNCALIBRATED} == without


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Two of the held-out sentences with their recordings."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    first = read_sentences(HELD_OUT, 2)
    (folder / "two.trans.txt").write_text("".join(f"{each.name} {each.text}\n" for each in first))
    for each in first:
        shutil.copy(each.check_recording(), folder)
    return folder


def test_the_sweep_of_speech_to_text(realtime_bundles: Path, recordings: Path, tmp_path: Path) -> None:
    out, command = tmp_path / "sweep.json", ["sweep", str(realtime_bundles / "onnx")]
    assert voxport([*command, "--sentences", str(recordings), "-o", str(out)]) == 0
    nothing, *others = json.loads(out.read_text())
    assert nothing["text_equal"] == 1 and {row["part"] for row in others} >= {ALL, "encoder", "decoder"}


def test_the_commands_judge_speech_to_text(
    trained_bundles: dict[str, Path], recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The embedded model hears both sentences in full precision, and so does the bundle."""
    bundle, out = trained_bundles["voxtral_realtime"], tmp_path / "found.json"
    options = ["--checkpoint", str(trained_checkpoint("voxtral_realtime")), "--sentences", str(recordings)]
    assert voxport(["evaluate", str(bundle), *options, "-o", str(out)]) == 0
    figures = json.loads(out.read_text())["figures"]
    assert {figures.pop(key) for key in ("live_equal", "text_equal")} == {1}
    assert figures == dict.fromkeys(("wer", "cer", "wer_live", "wer_full", "wer_difference_error"), 0)
    capsys.readouterr()
    assert voxport(["evaluate", str(bundle), *options, "--readings", "2"]) == 2
    assert "is for text to speech" in error_line(capsys)
    assert voxport(["sweep", str(bundle), *options]) == 0
    assert "all parts" in capsys.readouterr().out


def test_a_sweep_needs_quantised_weights(resolved: Resolved) -> None:
    with pytest.raises(UsageError, match="no weight of this bundle is quantised"):
        parts_to_sweep(resolved.in_full_precision(), False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sentences", "missing.txt"], "missing.txt: No such file"),
        (["--recogniser", "missing"], "missing is not a bundle: there is no such folder"),
        (["--alone", "--checkpoint", "."], "--alone uses no checkpoint"),
    ],
)
def test_wrong_options_are_one_line(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert voxport(["evaluate", str(bundle.folder), *options]) == 2
    assert message in error_line(capsys)
