"""Names in any case."""

from pathlib import Path

import pytest

from voxport.bundle.errors import RecipeError, UsageError
from voxport.bundle.manifest import MANIFEST, Bundle
from voxport.bundle.names import did_you_mean, find_name
from voxport.export.targets import TARGETS, parse_targets
from voxport.model.families import find_family
from voxport.quantize.recipe import RECIPES, find_recipe


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
    assert did_you_mean("ncnn", ["onnx", "coreml"]) == ""


@pytest.mark.parametrize(
    ("nearest", "names"),
    [
        ("w8", "int8 INT8 q8 8bit 8-bit w8a16 w8a8 w6 q6_k fp8 mxfp8 q5_k_m"),
        ("w8g32", "Q8_0 int8-g32 8bit-gs32 w8_group32"),
        ("w4", "int4 q4 q4_0 Q4_K_M iq4_xs 4bit 4-bit w4a16 nf4 mxfp4 nvfp4 w3 int2 uint4 int4g32 q4g32"),
        ("8da4w", "w4a8 int4a8 w4a8dynamic"),
        ("w4g128", "awq gptq gptq-int4"),
        ("lut4", "lut8 palettized kmeans 4bit_palettization"),
        ("lut4g8 or lut4g32", "4bit_weight_palettized_group8 4bit_palettized_group32"),
        ("none, with --compute-precision float16", "fp16 float16 f16 bf16 bfloat16 half"),
        ("none", "fp32 float32 f32"),
    ],
)
def test_the_nearest_recipe_to_a_name_of_another_program_is_named(nearest: str, names: str) -> None:
    for name in names.split():
        with pytest.raises(RecipeError, match=f"; the nearest is {nearest}$"):
            find_recipe(name)
        with pytest.raises(RecipeError, match=r"target .*there are onnx, executorch, coreml, coreai$"):
            parse_targets(name)


@pytest.mark.parametrize(
    ("nearest", "names"),
    [
        ("executorch", "tflite TFLite litert"),
        ("onnx", "openvino gguf tensorrt cuda wasm"),
        ("coreml", "mlpackage ios18 macos-26"),
        ("coreml, or coreai from iOS 27", "ios macos apple ane"),
        ("coreml or coreai for Apple devices", "mlx"),
        ("coreai", "aimodel core-ai coreai-torch ios27 macOS-27"),
        ("onnx and the other targets", "all"),
    ],
)
def test_the_nearest_target_to_a_name_of_another_program_is_named(nearest: str, names: str) -> None:
    for name in names.split():
        with pytest.raises(RecipeError, match=f"; the nearest is {nearest}"):
            parse_targets(name)


@pytest.mark.parametrize(("name", "close"), [("onx", "onnx"), ("w8g12", "w8g128")])
def test_a_misspelt_name_is_not_a_name_of_another_program(name: str, close: str) -> None:
    assert f"did you mean {close}" in did_you_mean(name, [*RECIPES, *TARGETS])


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
