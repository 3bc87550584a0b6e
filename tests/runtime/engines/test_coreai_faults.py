"""A fault planted in a Core AI asset: verification finds it."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.bundle_options import QUANT, write_hashes
from support.export.cache import ExportCache
from support.export.coreml_packages import verify

from voxport.export.targets.coreai.lowering import HASH, METADATA, PROGRAM, normalise
from voxport.export.targets.coreai.tools import AIModelAsset, Context, ir

ASSET = "codec.aimodel"


def drop_a_state_update(asset: Path) -> None:
    """`codec_step` writes back what it read from its last state."""
    with Context(), ir.Location.unknown():
        program = AIModelAsset.load(asset).program
        functions: Any = program._module._mlir_module.body.operations
        function = next(each for each in functions if each.sym_name.value == "codec_step")
        operations = list(function.regions[0].blocks[0].operations)
        write = [op for op in operations if op.name == "coreai.write_handle"][-1]
        read = next(
            op for op in operations if op.name == "coreai.read_handle" and op.operands[0] == write.operands[0]
        )
        write.operands[1] = read.results[0]
        program.save_asset(asset)
    normalise(asset)


def test_a_state_that_is_not_written_fails_the_command(
    tmp_path: Path, exports: ExportCache, short_verification: None, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--target", "coreai", *QUANT, "--compute-precision", "float32", "--no-verify")
    bundle = exports.export(tmp_path / "bundle", *options)
    drop_a_state_update(bundle / ASSET)
    write_hashes(bundle, *(f"{ASSET}/{name}" for name in (PROGRAM, HASH, METADATA)))
    assert verify(bundle, "--json") == 4
    rows = json.loads(capsys.readouterr().out)["rows"]
    failed = {
        (row["component"], row["output"])
        for row in rows
        if not row["passed"] and row["check"].startswith(("outputs", "states")) and "component" in row
    }
    assert failed == {("codec_step", "states")}
