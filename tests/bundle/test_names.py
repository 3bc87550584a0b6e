"""Names in any case."""

from pathlib import Path

import pytest

from voxport.bundle.errors import RecipeError, UsageError
from voxport.bundle.manifest import MANIFEST, Bundle
from voxport.bundle.names import did_you_mean, find_name
from voxport.export.targets import parse_targets
from voxport.model.families import find_family
from voxport.quantize.recipe import find_recipe


@pytest.mark.parametrize(
    ("name", "names", "found"),
    [
        ("Anna", ["anna", "ben"], "anna"),
        ("ANNA", ["anna", "Anna"], "ANNA"),  # two fit
        ("Anna", ["anna", "Anna"], "Anna"),
        ("clara", ["anna", "ben"], "clara"),
        ("STRASSE", ["straße"], "straße"),
    ],
)
def test_the_only_name_that_fits_is_found(name: str, names: list[str], found: str) -> None:
    assert find_name(name, names) == found


def test_a_close_name_is_offered() -> None:
    assert did_you_mean("OMNX", ["onnx", "coreml"]) == "; did you mean onnx?"
    assert did_you_mean("tflite", ["onnx", "coreml"]) == ""


def test_a_bundle_beside_with_a_close_name_is_offered(tmp_path: Path) -> None:
    (tmp_path / "tiny-onnx-w8").mkdir()
    (tmp_path / "tiny-onnx-w8" / MANIFEST).touch()
    with pytest.raises(UsageError, match=r"no such folder; .*; did you mean tiny-onnx-w8\?"):
        Bundle(tmp_path / "tiny-onx-w8")


def test_targets_recipes_and_models_are_found_in_any_case() -> None:
    assert parse_targets("ONNX, CoreML,onnx") == ("onnx", "coreml")
    assert find_recipe("W8").name == "w8" and find_family("Voxtral-Realtime") == "voxtral_realtime"
    with pytest.raises(RecipeError, match="target 'tflite' is unknown"):
        parse_targets("tflite")
