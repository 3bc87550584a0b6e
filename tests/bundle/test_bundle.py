"""Bundles made with the command line: reproducible, reused, not overwritten, and described."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.bundle_options import QUANT, edit_manifest
from support.files import contents
from support.paths import ROOT

from voxport.bundle.errors import IntegrityError
from voxport.bundle.manifest import SCHEMA_VERSION, ExportRequest, Manifest, read_manifest
from voxport.export.__main__ import main as export
from voxport.export.card import bundle_readme
from voxport.export.job import make_job
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.runtime.opening import open_bundle

LOWER = """
import sys
from pathlib import Path
from voxport.bundle.manifest import Bundle
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets import target_of_job

source, bundle, out, *graphs = sys.argv[1:]
job = Bundle(Path(bundle)).job
target = target_of_job(job)
model = Model(resolve(Source(Path(source)), job.request), target.layout, job.compute_precision)
for name in graphs:
    target.lower(model.graph(name), Path(out))
"""


@pytest.mark.slow
def test_the_same_inputs_give_the_same_bytes(bundles: Path, checkpoint: Path, tmp_path: Path) -> None:
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


def test_an_up_to_date_bundle_is_reported_and_not_exported_again(
    bundles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(bundles / "onnx")
    assert export(["--target", "onnx", *QUANT, "--out", str(bundles / "onnx"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["made"] is False
    assert contents(bundles / "onnx") == before


@pytest.mark.parametrize(
    "arguments",
    [["--quant", "w8"], [*QUANT, "--first-frame", "audio_token"], [*QUANT, "--cache-length", "64"]],
)
def test_an_existing_different_bundle_is_replaced_only_with_force(
    bundles: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    before = contents(bundles / "onnx")
    assert export(["--target", "onnx", *arguments, "--out", str(bundles / "onnx")]) == 2
    line = capsys.readouterr().err
    assert "force" in line and " there and " in line
    assert contents(bundles / "onnx") == before


def test_opening_an_unverified_bundle_logs_a_warning(
    onnx_copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit_manifest(onnx_copy, lambda m: m["verification"].update(status="unverified"))
    with caplog.at_level("WARNING"):
        open_bundle(onnx_copy)
    assert "unverified" in caplog.text


def test_the_readme_of_a_bundle_names_every_tensor(bundles: Path) -> None:
    for target in ("onnx", "executorch", "coreml", "coreai"):
        text = (bundles / target / "README.md").read_text()
        for component in read_manifest(bundles / target).job.components:
            # as states are named there
            prefix = f"{component.graph}_" if target in ("coreml", "coreai") else ""
            for name in (
                *(t.name for t in (*component.signature.inputs, *component.signature.outputs)),
                *(prefix + state.name for state in component.signature.states),
            ):
                assert f"| {name} |" in text


def test_the_readme_of_a_bundle_mentions_caches_only_where_there_are_some(checkpoint: Path) -> None:
    target = open_target("onnx")
    job = make_job(resolve(Source(checkpoint), ExportRequest()), target, "tiny")
    manifest = Manifest(
        schema_version=SCHEMA_VERSION, job=job, files={}, tokenizer=(), voices={}, weight_errors={}
    )
    with_caches = bundle_readme(manifest, "Call it once.", target)
    assert "Call it once.\n\n## Components\n" in with_caches
    assert "caches hold 2048 rows" in with_caches
    components = tuple(entry for entry in job.components if not entry.signature.cache)
    without_job = job.model_copy(update={"components": components})
    without = bundle_readme(manifest.model_copy(update={"job": without_job}), "Call it once.\n", target)
    assert "Call it once.\n\n## Components\n" in without and "caches hold" not in without


@pytest.mark.parametrize("text", ["{", "[]", "null", "1" * 5000, "\xff", '{"a": 1', "[" * 100_000])
def test_a_file_that_is_not_a_manifest_raises_integrity_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(IntegrityError, match=r"manifest\.json"):
        read_manifest(tmp_path)
