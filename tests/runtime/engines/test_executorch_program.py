"""A program that is not what the manifest says is refused before it is called."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from voxport.bundle.errors import IntegrityError
from voxport.bundle.manifest import MANIFEST, Bundle
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.executorch import check_method


def tensor(component: dict[str, Any], kind: str, index: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = component["signature"][kind][index]
    return found


Lie = tuple[str, str, Callable[[Any], object]]  # method that is called, component, change of its entry
LIES: dict[str, Lie] = {
    "wider input": (
        "acoustic_step",
        "acoustic_step",
        lambda step: tensor(step, "inputs").update(shape=[1, 37]),
    ),
    "other type": (
        "acoustic_step",
        "acoustic_step",
        lambda step: tensor(step, "inputs").update(dtype="int32"),
    ),
    "more axes": ("acoustic_step", "acoustic_step", lambda step: tensor(step, "outputs").update(shape=[36])),
    "no output": ("acoustic_step", "acoustic_step", lambda step: step["signature"]["outputs"].pop()),
    "longer call": ("backbone", "prefill", lambda step: step["signature"]["dims"].update(S=[1, 4096])),
    "longer block": ("backbone.read", "prefill", lambda step: step.update(state_rows_per_call=4096)),
    "shorter block": ("backbone.write", "prefill", lambda step: step.update(state_rows_per_call=1)),
    "dropped state": ("codec.read", "codec", lambda step: step["signature"]["states"].pop()),
    "longer state": ("codec.write", "codec", lambda step: tensor(step, "states").update(shape=[1, 3, 64])),
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_does_not_describe_the_program_is_refused(
    bundles: Path, tmp_path: Path, lie: str
) -> None:
    folder = shutil.copytree(bundles / "executorch", tmp_path / "bundle")
    document = json.loads((folder / MANIFEST).read_text())
    method, component, change = LIES[lie]
    entries = document["job"]["components"]
    named = next(entry for entry in entries if entry["name"] == component)
    for entry in entries:  # components of one graph have the same states
        if entry is named or (entry["graph"] == named["graph"] and "state" in lie):
            change(entry)
    (folder / MANIFEST).write_text(json.dumps(document))
    bundle = Bundle(folder)
    with pytest.raises(IntegrityError, match=f"method {method} has .* the manifest says"):
        cast(Any, open_engine(bundle)).execute(bundle.component(component).file, method, [])


def test_a_program_whose_description_is_damaged_is_refused(tmp_path: Path) -> None:
    """Found by the fuzzing: ExecuTorch raises IndexError for an input that is no tensor."""

    def no_tensor(index: int) -> None:
        raise IndexError(f"Cannot get input tensor meta at {index}")

    metadata = SimpleNamespace(name=lambda: "codec", num_inputs=lambda: 2, input_tensor_meta=no_tensor)
    with pytest.raises(IntegrityError, match=r"codec.pte: method codec: Cannot get input tensor meta at 0"):
        check_method(tmp_path / "codec.pte", metadata, [])
