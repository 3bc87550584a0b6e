"""Ambiguous manifests and manifests with control characters are refused; so are links
and files that a manifest does not list.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from support.stand_ins import stand_in

from voxport.bundle.constants.voxtral_tts import VoxtralConstants
from voxport.bundle.errors import IntegrityError
from voxport.bundle.folder import check_links, unlisted
from voxport.bundle.manifest import MANIFEST, SCHEMA_VERSION, Bundle, read_manifest
from voxport.bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec
from voxport.runtime.engines.base import Arrays, check_outputs
from voxport.runtime.families import parse_constants


@pytest.mark.parametrize(
    "content, named",
    [
        ('{"schema_version": 2, "schema_version": 2}', "'schema_version' comes twice"),
        ('{"job": {"a": 1, "a": 2}}', "'a' comes twice"),
        ('{"schema_version": true}', "schema_version is True"),
        ('{"schema_version": 2.0}', r"schema_version is 2\.0"),
        ('{"executed_by": "not run"}', "schema_version: Field required"),
        (" " * (2**24 + 1), "expected at most 16777216"),
        (json.dumps({"voices": {"\x1b[31m": "x"}}), r"json: the text .*31m.* has control characters"),
        (
            json.dumps({"job": {"licence": ["free\u202etxt"]}}),
            "json: the text .*free.* has control characters",
        ),
    ],
)
def test_it_is_refused(tmp_path: Path, content: str, named: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(IntegrityError, match=named) as caught:
        read_manifest(tmp_path)
    assert str(caught.value).isprintable()


OLD = Path(__file__).parent / "data" / "manifest-2.json"


def test_a_bundle_of_version_2_is_refused_with_the_command_that_makes_it_again(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(OLD.read_bytes())
    says = (
        "schema version 2, this version reads 3; "
        "make it again: voxport export --checkpoint FOLDER --target onnx --quant w8"
    )
    with pytest.raises(IntegrityError, match=says):
        read_manifest(tmp_path)


def test_unknown_keys_are_ignored_with_one_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a newer version may write them: at the top, in a list of records, and in a tensor."""
    content = json.loads(OLD.read_text()) | {"schema_version": SCHEMA_VERSION, "signed_by": "us"}
    for component in content["job"]["components"] * 2:
        component["colour"] = component["signature"]["inputs"][0]["unit"] = 1
    (tmp_path / MANIFEST).write_text(json.dumps(content))
    with caplog.at_level("INFO"):
        manifest = read_manifest(tmp_path)
    assert manifest.job.components[0].name == "embed_text"
    (note,) = (record.getMessage() for record in caplog.records)
    assert note.endswith(
        "signed_by, job.components.colour, job.components.signature.inputs.unit: ignored; "
        "a newer version of voxport knows it"
    )
    constants = content["job"]["constants"] | {"first_frame": "prefill", "loudness": 3}
    assert parse_constants(VoxtralConstants, constants) == parse_constants(
        VoxtralConstants, {**constants, "loudness": 4}
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An opened folder with a package, without a manifest of its own."""
    (tmp_path / "bundle" / "graph.mlpackage").mkdir(parents=True)
    for name in ("manifest.json", "README.md", "graph.mlpackage/weights", ".gitattributes"):
        (tmp_path / "bundle" / name).write_text("x")
    (tmp_path / "bundle" / ".cache").mkdir()
    (tmp_path / "bundle" / ".cache" / "lock").write_text("x")
    return tmp_path / "bundle"


def check(folder: Path) -> None:
    bundle = Bundle.__new__(Bundle)
    bundle.folder, bundle.manifest = folder, stand_in(files={"graph.mlpackage/weights": None})
    check_links(folder)
    bundle.check_unlisted()


def test_hidden_files_beside_the_manifest_are_left_alone(folder: Path) -> None:
    check(folder)


@pytest.mark.parametrize(
    "name",
    [
        *(f"more{suffix}" for suffix in (".onnx", ".onnx.data", ".PTE", ".ptd", ".json", ".npz", ".bin")),
        "new/more.safetensors",
        "graph.mlpackage/more",
        "graph.mlpackage/.hidden",
        "new.mlpackage/Data/text.txt",
    ],
)
def test_a_file_that_an_engine_could_read_and_that_is_not_listed_is_refused(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("x")
    with pytest.raises(IntegrityError, match=f"{name}: is not in the manifest"):
        check(folder)


@pytest.mark.parametrize("name", ["LICENSE", "NOTES.txt", ".gitattributes", "notes/paper.pdf", "icon.png"])
def test_a_file_that_no_engine_reads_is_mentioned(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("x")
    check(folder)
    listed = {"manifest.json", "README.md", "graph.mlpackage/weights"}
    assert unlisted(folder, listed) == ([] if name.startswith(".") else [name])


@pytest.mark.parametrize("name", ["graph.mlpackage/weights", "graph.mlpackage/more", "README.md", "new"])
def test_a_link_is_refused_wherever_it_leads(folder: Path, name: str) -> None:
    for target in ("/etc", folder / "manifest.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
        with pytest.raises(IntegrityError, match=f"{name}: is a link"):
            check(folder)


def test_a_pipe_beside_the_manifest_is_refused(folder: Path) -> None:
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")
    with pytest.raises(IntegrityError, match=r"README\.md: is not a file"):
        check(folder)


SIGNATURE = Signature((), (TensorSpec("hidden", "float32", (1, "S", 4), Kind.HIDDEN),))


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"hidden": np.zeros((1, 3, 5), np.float32)},
        {"hidden": np.zeros((3, 4), np.float32)},
        {"hidden": np.zeros((1, 3, 4), np.int64)},
        {"hidden": np.zeros((1, 2, 4), np.float32)},
    ],
)
def test_outputs_that_the_manifest_does_not_have_are_refused(outputs: Arrays) -> None:
    check_outputs("prefill", SIGNATURE, {"hidden": np.zeros((1, 3, 4), np.float32)}, {"S": 3})
    check_outputs("prefill", SIGNATURE, {"hidden": np.zeros((2, 3, 4), np.float32)}, {"S": 3})  # two slots
    with pytest.raises(IntegrityError, match=r"prefill: output hidden .*, the manifest says"):
        check_outputs("prefill", SIGNATURE, outputs, {"S": 3})


def test_the_length_of_an_output_follows_from_that_of_the_input() -> None:
    signature = Signature((), (TensorSpec("audio", "float32", (1, "1920*T"), Kind.AUDIO),))
    check_outputs("codec", signature, {"audio": np.zeros((1, 3840), np.float32)}, {"T": 2})
    wrong: tuple[dict[int | str, int], ...] = ({"T": 1}, {})
    for sizes in wrong:
        with pytest.raises(IntegrityError, match="output audio"):
            check_outputs("codec", signature, {"audio": np.zeros((1, 3840), np.float32)}, sizes)


def test_the_rows_of_a_call_are_in_its_first_input() -> None:
    position = TensorSpec("position", "int64", (1,), Kind.INDEX)
    rows = TensorSpec("embeddings", "float32", (1, 1, 4), Kind.EMBEDDING)
    Signature((rows, position), ())
    with pytest.raises(ValueError, match="position, has no axis of rows"):
        Signature((position, rows), ())


def test_a_window_fits_its_cache() -> None:
    StateSpec("k", "float32", (1, 8, 1, 2), CacheSpec("BSHD", 5, 1, 4))
    with pytest.raises(ValueError, match="cache k of 7 rows, its window needs 8"):
        StateSpec("k", "float32", (1, 7, 1, 2), CacheSpec("BSHD", 5, 1, 4))


@pytest.mark.slow
@pytest.mark.parametrize("change", ["cache", "name", "dropped", "doubled"])
def test_components_of_a_graph_have_the_same_states(bundles: Path, tmp_path: Path, change: str) -> None:
    """An engine allocates the caches of a graph once."""
    document = json.loads((bundles / "onnx" / MANIFEST).read_text())
    component = next(entry for entry in document["job"]["components"] if entry["name"] == "decode_step")
    states = component["signature"]["states"]
    if change in ("cache", "name"):
        states[0][change] = None if change == "cache" else "other"
    elif change == "dropped":
        states.pop()
    else:
        states.append(states[0] | {"name": "more"})
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(IntegrityError, match="decode_step: its states differ"):
        read_manifest(tmp_path)
