"""The table of families: detection, refusal, and adding a family with one row."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from exercises.toy_model import family as toy_family
from support.model.changed import changed

from voxport.bundle.errors import CheckpointNotFound, ConfigError, UsageError
from voxport.export.__main__ import main as export
from voxport.model import families
from voxport.model.__main__ import main
from voxport.model.checkpoint import materialize
from voxport.model.families import FAMILIES, family_of, find_family, layouts_of, open_family
from voxport.model.graph import ModelSpec
from voxport.model.synthetic.checkpoint import write_checkpoint


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkpoint of a family that only this row defines."""
    monkeypatch.setitem(FAMILIES, "toy", families.Row("Toy", "exercises.toy_model"))
    write_checkpoint(tmp_path / "toy", key="toy")
    return tmp_path / "toy"


@pytest.mark.parametrize("key", ["voxtral_tts", "voxtral_realtime"])
def test_a_checkpoint_is_detected_by_its_family_alone(key: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / key, key=key)
    assert family_of(tmp_path / key) == key
    assert [other for other in FAMILIES if layouts_of(other)[0].detect(tmp_path / key)] == [key]


def test_the_source_files_of_a_bundle_are_listed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "tts")
    found = layouts_of("voxtral_tts")[0].source_files(tmp_path / "tts")
    voices = [f"voice_embedding/{name}.pt" for name in ("casual_male", "fr_male", "neutral_female")]
    assert found == ["params.json", "consolidated.safetensors", "tekken.json", *voices]


def test_another_params_json_is_refused_with_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(json.dumps({"dim": 3}))
    with pytest.raises(ConfigError, match=r"params\.json: describes no known model; .*audio_model_args"):
        family_of(tmp_path)


def test_a_damaged_params_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{")
    with pytest.raises(ConfigError, match=r"params\.json: not readable as JSON"):
        family_of(tmp_path)


def test_a_folder_without_any_configuration_is_no_checkpoint(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointNotFound):
            family_of(folder)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="voxtral-tts, voxtral-realtime"):
        find_family("other")


def test_the_table_layouts_and_options_import_no_torch() -> None:
    code = (
        "import sys; from voxport.model.families import FAMILIES, layouts_of, options_of\n"
        "for key in FAMILIES: layouts_of(key), options_of(key)\n"
        "print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "False\n"


def test_one_row_adds_a_family(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert family_of(toy) == "toy"
    assert main(["inspect", str(toy), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["family"], summary["tensors"]) == ("toy", 2)
    assert summary["parameters"] == {"body": 1024, "head": 1024}


def test_the_list_shows_the_sizes_of_each_family(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sizes"]["toy"] == ["tiny"]
    assert {"decode_step", "align"} < found["components"]["qwen3_asr"].keys()  # of two kinds of models


def test_a_row_that_disagrees_with_its_family_is_refused(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "other", FAMILIES["toy"])
    with pytest.raises(ConfigError, match=r"toy_model\.family: FAMILY\.name is 'toy', expected 'other'"):
        open_family("other")


def test_a_tensor_of_no_parameter_group_is_named(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toy_family, "FAMILY", changed(toy_family.FAMILY, parameter_groups={"body.": "body"}))
    assert main(["inspect", str(toy)]) == 5
    assert "parameter_groups has no prefix of head.weight" in capsys.readouterr().err


def test_a_long_label_of_inspect_is_followed_by_a_space(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    label = "a label of more than 24 characters"
    monkeypatch.setattr(
        toy_family, "FAMILY", changed(toy_family.FAMILY, summary=lambda config: [(label, "7")])
    )
    assert main(["inspect", str(toy)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{label} 7" in lines and f"{'family':<{len(label)}} toy" in lines


def test_the_module_of_an_added_family_matches_its_signature(toy: Path) -> None:
    family = open_family("toy")
    model = ModelSpec(family.layout.load_config(toy), family.options(), cache_length=8)
    (graph,) = family.graphs(model.config, model.options)
    component = graph.components(model)[-1]
    checkpoint = family.open_checkpoint(toy)
    root: Any = family.open_root(model.config, checkpoint)
    materialize(root, checkpoint, graph.weights)
    module = graph.build(root, model)
    x = torch.from_numpy(component.example(0)["x"])
    (cache,) = (torch.zeros(state.shape) for state in component.signature.states)
    y, cache = module(x, torch.tensor([0]), cache)
    again, _ = module(x, torch.tensor([1]), cache)
    torch.testing.assert_close(again, y)  # the mean of two equal rows
    assert torch.equal(root.head.weight, checkpoint.tensor("head.weight").float())
