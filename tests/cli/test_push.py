"""`voxport push` to a hub on this machine."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.files import contents
from support.hub import TOKEN, running_hub
from support.hub_commands import Machine

NAME = "me/voice"


@pytest.fixture
def machine(tmp_path: Path, bundles: Path) -> Iterator[Machine]:
    """Its folder has a verified bundle, `B`, with files that are and are not for a hub."""
    shutil.copytree(bundles / "onnx", tmp_path / "B")
    (tmp_path / "B" / "LICENSE").write_text("licence")
    (tmp_path / "B" / "NOTES.txt").write_text("private")
    (tmp_path / "B" / "LICENSES").mkdir()
    with running_hub() as hub:
        yield Machine(hub, tmp_path)


@pytest.mark.slow
def test_a_bundle_is_uploaded_with_its_card_and_speaks_by_name(machine: Machine) -> None:
    done = machine.run("push", "B", NAME, "--private", "--json", HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    repository = machine.hub.repositories[NAME]
    commit = repository.refs["main"]
    url = f"{machine.hub.url}/{NAME}/commit/{commit}"
    assert json.loads(done.stdout) == {"url": url, "commit": commit} and repository.is_private
    expected = contents(machine.folder / "B")
    del expected["NOTES.txt"]
    assert repository.commits[commit] == expected | {".gitattributes": b""}
    card = yaml.safe_load(repository.commits[commit]["README.md"].decode().split("---\n")[1])
    assert card["library_name"] == "voxport" and card["pipeline_tag"] == "text-to-speech"
    arguments = ("say", "Hello.", "--max-frames", "2", "--bundle", NAME, "-o", "out.wav")
    assert machine.run(*arguments, HF_TOKEN=TOKEN).returncode == 0
    assert "nor a repository of the hub that you may use" in machine.fails(2, "info", NAME)


@pytest.mark.slow
def test_another_bundle_replaces_the_files_of_the_first(machine: Machine) -> None:
    files = {"manifest.json": b"{}", "old.onnx": b"graph", "paper.pdf": b"%PDF"}
    repository = machine.hub.add(NAME, files)
    done = machine.run("push", "B", f"hf://{NAME}@next", HF_TOKEN=TOKEN)
    assert done.returncode == 0 and "MB; everyone may read a new repository" in done.stderr, done.stderr
    (commit,) = set(repository.commits) - {repository.refs["main"]}
    pushed = repository.commits[commit]
    assert repository.refs["next"] == commit and repository.commits[repository.refs["main"]] == files
    assert "old.onnx" not in pushed and "paper.pdf" in pushed and pushed["manifest.json"] != b"{}"


@pytest.mark.slow
def test_what_is_refused_changes_nothing(machine: Machine) -> None:
    checkpoint = machine.hub.add("me/ft", {"model.safetensors": b"weights"})
    refused = machine.fails(2, "push", "B", "me/ft", HF_TOKEN=TOKEN)
    assert "holds model.safetensors, which is no bundle" in refused and len(checkpoint.commits) == 1
    for token in ("", "wrong"):
        assert "the hub refuses (401" in machine.fails(2, "push", "B", NAME, HF_TOKEN=token)
    for name in ("voice", "../voice", "https://my.org/me/voice"):
        assert "expected hf://OWNER/NAME" in machine.fails(2, "push", "missing", name), "before the bundle"
    manifest = machine.folder / "B" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["verification"]["status"] = "unverified"
    manifest.write_text(json.dumps(content))
    assert "is unverified; export it" in machine.fails(2, "push", "B", NAME, HF_TOKEN=TOKEN)
    path = machine.folder / "B" / "codec.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert "its bytes differ" in machine.fails(5, "push", "B", NAME, "--unverified", HF_TOKEN=TOKEN)
    assert NAME not in machine.hub.repositories
