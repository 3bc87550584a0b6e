"""What real inputs say about weights: recorded, replayed, stored, and used by an export."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import save_file
from support.export.calibrations import ALIGNER, DATA, SENTENCES, TARGET, job_of, of_family, recorded
from torch import nn

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import ExportRequest
from voxport.bundle.spec import Kind
from voxport.export.calibration import free_run, languages, run
from voxport.export.calibration.channels import most_exponents
from voxport.export.calibration.data import built_in, from_folder
from voxport.export.calibration.graph import GraphReplay
from voxport.export.calibration.mixture import Budget
from voxport.export.calibration.record import Call
from voxport.export.calibration.replay import Collector, QuantizingCollector
from voxport.export.evaluation.sentences import HELD_OUT, Sentence, read_sentences
from voxport.export.model import Model
from voxport.export.resolve import Resolved, Source, resolve
from voxport.export.verify.eager import EagerEngine
from voxport.model.families import FAMILIES
from voxport.model.layers.channels import ChannelChanges
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.model.synthetic.outliers import Outliers
from voxport.model.voxtral_tts.sizes import SIZES
from voxport.quantize.calibration import Calibration, StoredWeights, quantize, save_calibration
from voxport.quantize.inputs import InputRows
from voxport.quantize.modules import QuantizedModule
from voxport.quantize.schemes import IntegerScheme, PaletteScheme
from voxport.quantize.search import SMALLEST_SCALE


@pytest.mark.parametrize("family", (*FAMILIES, ALIGNER))
def test_a_replay_computes_what_single_calls_do_and_weights_are_those_of_the_export(
    family: str, tmp_path: Path
) -> None:
    """In floats, beside the engine of the recorded calls; quantised, beside a model that an export loads with
    the statistics. Statistics of another layer, other columns, inputs from floats, or scales that move on one
    side only change the second output.
    """
    resolved, job = of_family(family)
    everything = recorded(resolved, job)
    statistics = Calibration(run.write_statistics(resolved, everything, tmp_path))
    calibrated = replace(resolved, calibration=statistics)
    merge = ChannelChanges(resolved.source.root(), statistics.exponents, statistics.rotations)
    checkpoint = resolved.source.checkpoint.changed(merge)
    compared = 0
    for name in resolved.graphs:
        calls = everything if name != "codec" else first_sequence(everything, name)
        replay = GraphReplay(resolved, name, calls)
        if not replay.in_floats():
            continue
        in_floats = outputs_of(resolved.in_full_precision(), calls, name)
        source = resolved.source.checkpoint
        assert distance(replay.run(Collector(replay.weights_of(source)), source)[0], in_floats) < 1e-4, name
        if replay.reads or name == "codec":
            continue
        collector = QuantizingCollector(replay.weights_of(checkpoint))
        found, *_ = replay.run(collector, checkpoint)
        if collector.folded:
            collector = QuantizingCollector(collector.weight_of, folded=collector.folded)
            found, *_ = replay.run(collector, checkpoint)
        expected = outputs_of(calibrated, calls, name)
        assert distance(found, expected) < 1e-4 < distance(expected, in_floats), name
        compared += 1
    assert compared


def test_the_rows_of_a_linear_are_what_it_meets_in_the_exported_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the rounding of bfloat16: the same layer, the same columns, scaled, behind quantised linears."""
    micro = SIZES["micro"]
    monkeypatch.setitem(SIZES, "micro", replace(micro, backbone=micro.backbone | {"n_layers": 2}))
    write_checkpoint(tmp_path / "checkpoint", "micro", key="voxtral_tts", plant=Outliers)
    resolved = resolve(Source(tmp_path / "checkpoint"), ExportRequest(quant="w4"))
    calls = recorded(resolved, job_of(resolved))
    statistics = Calibration(run.write_statistics(resolved, calls, tmp_path))
    assert statistics.exponents and statistics.rotations
    changes = ChannelChanges(resolved.source.root(), statistics.exponents, statistics.rotations)
    checkpoint = resolved.source.checkpoint.changed(changes)
    replay = GraphReplay(resolved, "backbone", calls)
    rows, floats = replay.quantized(checkpoint).rows_by_path(), Collector(replay.weights_of(checkpoint))
    replay.run(floats, checkpoint)
    met = dict[str, list[torch.Tensor]]()

    def keep(linear: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if isinstance(linear, QuantizedModule):
            met.setdefault(linear.paths[0], []).append(inputs[0].flatten(0, -2))

    with nn.modules.module.register_module_forward_pre_hook(keep):
        outputs_of(replace(resolved, calibration=statistics), calls, "backbone")
    names = ("attention.wq", "attention.wo", "feed_forward.w1", "feed_forward.w2")  # of one input
    first, *others = (f"layers.{layer}.{name}" for layer in (0, 1) for name in names)
    in_floats = floats.rows_by_path()
    for path in (first, *others):
        expected = torch.cat(met[path])
        assert distance(rows[path].float(), expected) < 2**-8, path
        assert path == first or distance(in_floats[path].float(), expected) > 2**-6, path


def test_channels_are_scaled_only_as_far_as_their_writer_tolerates() -> None:
    """A row of 4 bits has the smallest scale if its largest weight is 8 times that; palettes are shared."""
    weight = SMALLEST_SCALE * torch.tensor([[8.0, 1.0], [2.0, -16.0], [-100.0, 0.0], [0.0, 0.1]])
    found = most_exponents(IntegerScheme(4, group=32), weight)
    assert found is not None and found.tolist() == [0, 1, 3, 0]
    assert most_exponents(PaletteScheme(4, channels=16), weight) is None


def first_sequence(calls: list[tuple[str, Call]], graph: str) -> list[tuple[str, Call]]:
    """A convolution of the next sequence would see the end of this one: see `join`."""
    own = [call for call in calls if call[0].startswith(graph)]
    starts = [place for place, (_, call) in enumerate(own) if int(call["position"].flatten()[0]) == 0]
    return own[: starts[1]]


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    return float((found - expected).norm() / expected.norm())


def outputs_of(resolved: Resolved, calls: Sequence[tuple[str, Call]], graph: str) -> torch.Tensor:
    """Rows of the first output of floats of all calls of a graph, one call after another."""
    model = Model(resolved, "BSHD")
    engine = EagerEngine(model.components, model.module, "BSHD")
    graphs = {each.name: each for each in model.components if each.graph == graph}
    stream, found = engine.stream(), list[torch.Tensor]()
    for name, call in calls:
        if name not in graphs:
            continue
        if "position" in call and int(call["position"].flatten()[0]) == 0:
            stream = engine.stream()
        outputs = stream.run(name, {key: value.numpy() for key, value in call.items()})
        specs = graphs[name].signature.outputs
        first = next(spec for spec in specs if spec.kind is not Kind.CHOICE)
        found.append(torch.from_numpy(outputs[first.name]))
    return torch.cat(found, dim=1 if next(iter(graphs.values())).signature.states else 0)


def test_a_repeating_graph_is_quantised_in_the_order_of_its_linears() -> None:
    """All calls of a code predictor count, and the last linears meet what the quantised ones before give."""
    resolved, job = of_family("qwen3_tts", code_predictor="w4")
    calls = recorded(resolved, job)
    replay = GraphReplay(resolved, "code_predictor", calls)
    in_floats = replay.in_floats()
    quantised = replay.quantized(resolved.source.checkpoint).rows_by_path()
    assert replay.reads and in_floats.keys() == quantised.keys()
    frames = sum(name == "code_predictor" for name, _ in calls)
    first, last = "talker.code_predictor.model.layers.0.self_attn.q_proj", list(quantised)[-1]
    assert len(quantised[first]) == 3 * frames
    moved = [distance(quantised[path].float(), in_floats[path].float()) for path in (first, last)]
    assert 0.01 < moved[0] < 0.7 * moved[1] < 0.3  # the first ones meet quantised tables and a projection


def test_a_head_gets_the_rows_that_it_meets_one_by_one(tmp_path: Path) -> None:
    resolved, job = of_family("qwen3_tts")
    path = run.write_statistics(resolved, recorded(resolved, job), tmp_path)
    rows = Calibration(tmp_path / "talker.floats").rows("talker.codec_head")
    assert rows and rows.count > 32 and "talker.codec_head" in Calibration(path).schemes


def test_statistics_do_not_depend_on_threads_or_interruptions_and_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(free_run, "FRAMES", 8)
    resolved, job = of_family("voxtral_tts")
    before, found = torch.get_num_threads(), list[bytes]()
    for threads in (1, 2):
        folder = tmp_path / f"{threads}"
        folder.mkdir()
        torch.set_num_threads(threads)
        try:
            if threads == 1:
                stop = patch.object(GraphReplay, "quantized", side_effect=KeyboardInterrupt)
                with stop, pytest.raises(KeyboardInterrupt):
                    run.calibrate(resolved, job, DATA, folder)
                monkeypatch.setattr(run, "record_run", None)  # is not needed again
            found.append(run.calibrate(resolved, job, DATA, folder).read_bytes())
        finally:
            torch.set_num_threads(before)
            monkeypatch.setattr(run, "record_run", free_run.record_run)
    assert found[0] == found[1]
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{sentence.text}\n" for sentence in SENTENCES))

    def calibrated(given: Path) -> str | None:
        return run.calibrated(resolved, TARGET, given).request.calibration

    first, data = calibrated(texts), from_folder(texts, listens=False)
    with caplog.at_level(logging.INFO, run.log.name):
        assert calibrated(texts) == first and "made before" in caplog.text
    stored = next(tmp_path.rglob(f"*{first}.safetensors"))
    given = tmp_path / "given.safetensors"
    given.write_bytes(stored.read_bytes())
    assert calibrated(given) == first
    with pytest.raises(UsageError, match=r"of another model, which has acoustic_transformer"):
        run.calibrated(of_family("qwen3_tts")[0], TARGET, given)
    with pytest.raises(UsageError, match="have no mixture"):
        run.calibrated(resolved, TARGET, given, Budget(bits=5))
    for path in tmp_path.rglob(f"*{first}.safetensors"):
        path.write_bytes(path.read_bytes()[:-2] + b"\1\2")
    with pytest.raises(UsageError, match="is damaged: its hash differs"):
        calibrated(texts)
    texts.write_text("Another text.\nAnd one more.\n")
    assert from_folder(texts, listens=False).sha256 != data.sha256


def test_values_that_are_not_finite_and_too_few_rows_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resolved, job = of_family("voxtral_tts")
    calls = recorded(resolved, job)
    last = [place for place, (name, _) in enumerate(calls) if name == "acoustic_step"][3:]
    few = [call for place, call in enumerate(calls) if place not in last]
    with caplog.at_level(logging.WARNING):
        run.write_statistics(resolved, few, tmp_path)
    assert "acoustic_transformer.layers.0" in caplog.text and "fewer than 32 rows" in caplog.text
    large = lambda name, tensor: tensor * 1e38 if name == "layers.0.ffn_norm.weight" else tensor
    resolved.source.checkpoint = resolved.source.checkpoint.changed(large)
    with pytest.raises(UsageError, match=r"layers\.0\.feed_forward\..* not finite"):
        GraphReplay(resolved, "backbone", calls).in_floats()


def test_stored_weights_are_for_one_checkpoint_and_one_recipe(tmp_path: Path) -> None:
    """Each holds what was quantised, whatever the number of bits; nothing is searched again."""
    resolved, job = of_family("voxtral_tts")
    calls = recorded(resolved, job)
    for quant, name in (("w4", "w1"), ("w8", "w2"), ("lut4", "w2")):
        path = f"layers.0.feed_forward.{name}"
        given = resolve(resolved.source, ExportRequest(quant=quant))
        folder = tmp_path / quant
        folder.mkdir()
        statistics = Calibration(run.write_statistics(given, calls, folder))
        replay = GraphReplay(given, "backbone", calls)
        merge = ChannelChanges(given.source.root(), statistics.exponents, statistics.rotations)
        changed = given.source.checkpoint.changed(merge)
        scheme = given.recipes["backbone"].scheme_for(path, False)
        assert scheme
        weight = replay.weights_of(changed)(path)
        plain = scheme.quantize(weight, path, False)
        found = statistics.restored(path, scheme, weight)
        assert found
        rows = InputRows.of(replay.quantized(changed).rows_by_path()[path])
        expected = quantize(scheme, weight, path, rows)
        assert torch.equal(found.module.weight, expected.module.weight) and found.errors == expected.errors
        assert not torch.equal(found.module.weight, plain.module.weight)
        tuned = weight.clone()
        tuned[0, 0] += 0.01  # a fine-tune moves norms by less than their rounding
        with pytest.raises(UsageError, match=f"{path}: was calibrated with other values"):
            statistics.restored(path, scheme, tuned)
        other = IntegerScheme(4, group=64)
        with pytest.raises(UsageError, match=f"{path}: was calibrated for .*, not for int4"):
            statistics.restored(path, other, weight)


def test_built_in_data_is_for_the_languages_of_the_model() -> None:
    assert {sentence.name for sentence in built_in(False, ["de", "fr"]).sentences} == {"de", "fr"}
    assert {sentence.name for sentence in built_in(False, ["xx"]).sentences} == {"en"}
    heard, evaluated = built_in(True, ["en"]).sentences, read_sentences(HELD_OUT)
    assert all(sentence.recording for sentence in heard)
    assert not {each.text for each in heard} & {each.text for each in evaluated}


def test_a_text_is_spoken_by_voices_of_its_language(monkeypatch: pytest.MonkeyPatch) -> None:
    used = list[str | None]()
    monkeypatch.setattr(free_run, "speak_text", lambda task, text, seed, speech: used.append(speech["voice"]))
    resolved, job = of_family("voxtral_tts")
    texts = ("Où est la gare ?", "Il fait très beau aujourd'hui.", "Where is the station?")
    free_run.record_run(resolved, job, [Sentence(f"line {at}", text) for at, text in enumerate(texts)])
    assert [bool(name and name.startswith("fr_")) for name in used] == [True, True, False]


def test_data_that_cannot_calibrate_is_refused_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(path: Path, listens: bool = False) -> str:
        with pytest.raises(UsageError) as found:
            from_folder(path, listens)
        assert found.value.field == "calibrate" and "\n" not in str(found.value)
        return str(found.value)

    (one := tmp_path / "one.txt").write_text("One sentence.\n")
    assert "too few rows; expected at least 2" in refused(one)
    assert "holds no sentence" in refused(tmp_path)
    (two := tmp_path / "two.txt").write_text("One sentence.\nAnother one.\n")
    assert "expected a folder of recordings" in refused(two, listens=True)
    (folder := tmp_path / "silent").mkdir()
    (folder / "a.trans.txt").write_text("a One sentence.\nb Another one.\n")
    assert "a: has no recording" in refused(folder, listens=True)
    for name in "ab":
        (folder / f"{name}.wav").write_text("no sound")
    assert "a.wav" in refused(folder, listens=True)
    for name in "ab":
        soundfile.write(folder / f"{name}.wav", np.zeros(16_000, np.float32), 16_000)
    assert "a.wav: is silent" in refused(folder, listens=True)
    assert "a.wav: is silent" in refused(folder), "a voice would be made from it"
    resolved, job = of_family("voxtral_tts")
    with pytest.raises(UsageError, match=r"line 1: .*script"):
        free_run.record_run(resolved, job, [Sentence("line 1", "\u4f60\u597d\uff0c\u4e16\u754c")])
    with caplog.at_level(logging.WARNING):
        free_run.record_run(resolved, job, [Sentence("line 1", "Gdzie jest najbliższy dworzec kolejowy?")])
    assert "seem to be in 'pl'; the voices speak en, fr" in caplog.text
    assert languages.language_of("God morgen.", ["nb"]) == "nb", "the library has another code"
    (tmp_path / "not.safetensors").write_text("nothing")
    save_file({"embedding": torch.zeros(2)}, tmp_path / "voice.safetensors")
    for name in ("not", "voice"):
        with pytest.raises(UsageError, match="has no statistics"):
            run.calibrated(resolved, TARGET, tmp_path / f"{name}.safetensors")
    other = StoredWeights()
    other.schemes["layers.0.feed_forward.w1"] = IntegerScheme(4, 32).to_entry()
    path = tmp_path / "other.safetensors"
    save_calibration(path, other, exponents={"layers.0.ffn_norm": torch.zeros(3)})
    with pytest.raises(UsageError, match=r"another model, whose layers\.0\.ffn_norm has 3 channels"):
        run.calibrated(resolved, TARGET, path)
    resolved, _ = of_family("qwen3_tts", talker="none", code_predictor="none")
    with pytest.raises(UsageError, match="quantises no linear that a calibration can look at"):
        run.calibrated(resolved, TARGET, two)
