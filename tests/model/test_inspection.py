"""`inspect` and export name the same problems of a checkpoint: unfinished downloads, keys, tensors."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commands import error_line
from support.model.changed import changed
from support.stand_ins import noting

from voxport.export.__main__ import main as export
from voxport.model.__main__ import main as model
from voxport.model.checkpoint_layout import INDEX_SUFFIX
from voxport.model.families import open_family
from voxport.model.inspection import inspect_checkpoint
from voxport.model.mistral_layout import WEIGHTS
from voxport.model.synthetic.checkpoint import random_checkpoint, write_checkpoint

INDEX = f"{WEIGHTS}{INDEX_SUFFIX}"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 143320776\n"
VOICE = "voice_embedding/fr_male.pt"
ENCODER = "audio_tokenizer.encoder_blocks.0.conv.parametrizations.weight.original0"


def set_key(folder: Path, path: str, value: object) -> None:
    content = json.loads((folder / "params.json").read_text())
    section = content
    *sections, key = path.split(".")
    for name in sections:
        section = section[name]
    section[key] = value
    (folder / "params.json").write_text(json.dumps(content))


def add_tensors(folder: Path, *names: str) -> None:
    tensors = load_file(folder / WEIGHTS) | {name: torch.ones(3) for name in names}
    save_file(tensors, folder / WEIGHTS)


def split(folder: Path) -> None:
    """Two shards and their index in place of the one file."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    shards = {name: f"consolidated-{index % 2}.safetensors" for index, name in enumerate(sorted(tensors))}
    for shard in set(shards.values()):
        save_file({name: tensors[name] for name in tensors if shards[name] == shard}, folder / shard)
    (folder / INDEX).write_text(json.dumps({"weight_map": shards}))


def cut(path: Path, kept: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])


def dry_run(folder: Path) -> int:
    return export(["--target", "onnx", "--checkpoint", str(folder), "--dry-run"])


def as_pointer(name: str) -> Callable[[Path], int]:
    return lambda folder: (folder / name).write_text(POINTER)


def missing_shard(folder: Path) -> None:
    split(folder)
    (folder / "consolidated-1.safetensors").unlink()


def hub_download(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    downloads = folder / ".cache/huggingface/download"
    downloads.mkdir(parents=True)
    (downloads / "dGVzdA==.0a1b.incomplete").write_bytes(b"")


def hub_snapshot_without_blob(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("../../blobs/0a1b")


def beside(folder: Path) -> None:
    (folder / f"{WEIGHTS}.aria2").write_bytes(b"")


UNFINISHED = {
    "weights are a pointer": (as_pointer(WEIGHTS), f"{WEIGHTS}: a Git LFS pointer", "git lfs pull"),
    "tokenizer is a pointer": (as_pointer("tekken.json"), "tekken.json: a Git LFS pointer", "git lfs pull"),
    "voice is a pointer": (as_pointer(VOICE), "fr_male.pt: a Git LFS pointer", "git lfs pull"),
    "parameters are a pointer": (as_pointer("params.json"), "params.json: a Git LFS pointer", "lfs pull"),
    "missing shard": (missing_shard, "consolidated-1.safetensors: missing", "fetch it"),
    "index is a pointer": (noting(as_pointer(INDEX), split), INDEX, "git lfs pull"),
    "index without a table": (
        noting(lambda folder: (folder / INDEX).write_text('{"weight_map": {"a": "../a"}}'), split),
        "expected `weight_map`",
        "fetch it again",
    ),
    "shard without a name": (
        noting(lambda folder: (folder / INDEX).write_text('{"weight_map": {"a": ""}}'), split),
        "expected `weight_map`",
        "fetch it again",
    ),
    "hub download": (hub_download, "0a1b.incomplete", "finish it"),
    "hub snapshot": (hub_snapshot_without_blob, "a link to a file that does not exist", "download again"),
    "aria2 file": (beside, f"{WEIGHTS}.aria2 exists", "finish it"),
    "truncated weights": (lambda folder: cut(folder / WEIGHTS, 0.5), "1,026,394 of at least 2,0", "again"),
    "truncated header": (lambda folder: cut(folder / WEIGHTS, 0.001), "holds 2,052 of at least", "again"),
    "truncated tokenizer": (lambda folder: cut(folder / "tekken.json", 0.5), "not readable as JSON", "again"),
}


@pytest.mark.parametrize(("damage", "says", "remedy"), UNFINISHED.values(), ids=UNFINISHED)
def test_an_unfinished_download_is_named_by_inspect_and_export(
    folder: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], says: str, remedy: str
) -> None:
    damage(folder)
    assert model(["inspect", str(folder)]) == 5
    out, err = capsys.readouterr()
    assert out.startswith("NOT LOADABLE, problems: 1\n")
    assert says in out and remedy in out and says in err and err.count("\n") == 1
    assert dry_run(folder) == 5
    line = error_line(capsys)
    assert says in line and remedy in line


def of_mlx(folder: Path, out: Path) -> Path:
    assert export(["convert", str(folder), str(out), "--to", "mlx"]) == 0
    return out


def of_gguf(folder: Path, out: Path) -> Path:
    (folder / WEIGHTS).rename(folder / "model.gguf")
    return folder


def with_adapter(folder: Path, out: Path) -> Path:
    """A part of one: its weights are missing."""
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    return folder


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (of_mlx, "the weights are those for MLX"),
        (of_gguf, "model.gguf is GGUF"),
        (with_adapter, "adapter_model.safetensors: missing; fetch it"),
    ],
)
def test_the_same_files_are_read_without_torch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path, Path], Path],
    says: str,
) -> None:
    source = Path(shutil.copytree(random_checkpoint("voxtral_realtime"), tmp_path / "source"))
    folder = make(source, tmp_path / "out")
    expected = inspect_checkpoint(folder)
    assert says in expected["problems"][0]
    monkeypatch.setattr("voxport.cli.commands.inspect.find_spec", lambda name: None)
    capsys.readouterr()
    assert model(["inspect", str(folder), "--json"]) == 5
    found = json.loads(capsys.readouterr().out)
    assert expected["problems"][0].startswith(found["problems"][0]) and not found["loadable"]
    if make is with_adapter:
        assert "adapter_model.safetensors: not compared with its base" in found["notes"][0]
        assert model(["inspect", str(source), "--adapter", str(tmp_path)]) == 2
        assert "has no adapter_config.json of peft" in error_line(capsys)


def test_split_weights_are_loadable(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split(folder)
    assert model(["inspect", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loadable"] and found["tensors"] == 109
    assert dry_run(folder) == 0


def test_a_stale_partial_file_beside_complete_ones_is_no_problem(folder: Path) -> None:
    downloads = folder / ".cache/huggingface/download"
    downloads.mkdir(parents=True)
    (downloads / "old.incomplete").write_bytes(b"")
    assert inspect_checkpoint(folder)["loadable"]


def test_folders_of_the_hub_cache_are_answered_with_the_snapshot(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "hub/models--owner--name"
    snapshot = repository / "snapshots/0a1b"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    for given in (repository, tmp_path / "hub"):
        assert model(["inspect", str(given)]) == 2
        assert f"part of the hub's cache; give the folder {snapshot}" in error_line(capsys)
        assert dry_run(given) == 2
        assert str(snapshot) in error_line(capsys)
    assert model(["inspect", str(snapshot)]) == 0


def test_a_snapshot_names_the_unfinished_blob(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = tmp_path / "models--owner--name/snapshots/0a1b"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "blobs").mkdir()
    (snapshot.parents[1] / "blobs/ff.incomplete").write_bytes(b"")
    assert model(["inspect", str(snapshot)]) == 5  # has not even its configuration
    assert "ff.incomplete" in error_line(capsys)
    for name in ("params.json", "tekken.json"):
        shutil.copy(folder / name, snapshot)
    assert model(["inspect", str(snapshot)]) == 5
    assert f"{WEIGHTS}: missing, and a download has not ended" in error_line(capsys)


def test_every_problem_is_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_pointer("tekken.json")(folder)
    as_pointer(VOICE)(folder)
    set_key(folder, "use_biases", True)
    set_key(folder, "model_parallel", 2)
    assert model(["inspect", str(folder), "--json"]) == 5
    found = json.loads(capsys.readouterr().out)
    assert not found["loadable"] and len(found["problems"]) == 3  # voices need the configuration
    for said in ("tekken.json", "use_biases", "model_parallel"):
        assert any(said in problem for problem in found["problems"])
    set_key(folder, "use_biases", False)
    set_key(folder, "model_parallel", 1)
    add_tensors(folder, "layers.7.norm.weight", "norm.weight")
    problems = inspect_checkpoint(folder)["problems"]
    assert len(problems) == 4
    for said in ("tekken.json", "fr_male", "layers.7.norm.weight not part", "norm.weight: shape [3]"):
        assert any(said in problem for problem in problems)


def test_many_problems_are_cut_in_the_text_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({name: torch.ones(3) for name in tensors}, folder / WEIGHTS)
    assert model(["inspect", str(folder)]) == 5
    shown = capsys.readouterr().out
    assert "NOT LOADABLE, problems: 109\n" in shown and "and 89 more, which --json lists" in shown
    assert shown.count("shape [3]") == 20


@pytest.mark.parametrize("family", ["voxtral_tts", "voxtral_realtime"])
@pytest.mark.parametrize(
    ("key", "assumed", "other"),
    [
        ("causal", True, False),
        ("model_parallel", 1, 2),
        ("use_biases", False, True),
        ("tied_embeddings", True, False),
    ],
)
def test_keys_of_public_copies_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str, key: str, assumed: int, other: int
) -> None:
    folder = tmp_path / "tiny"
    write_checkpoint(folder, key=family)
    set_key(folder, key, assumed)
    assert inspect_checkpoint(folder)["loadable"]
    set_key(folder, key, other)
    assert dry_run(folder) == 5
    line = error_line(capsys)
    assert f"params.json: {key}: Input should be {assumed}, found '{other}'" in line


def test_tensors_of_a_later_release_are_named_as_unused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_tensors(folder, ENCODER, "audio_tokenizer.input_proj.conv.parametrizations.weight.original0")
    assert model(["inspect", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("loadable\n") and ENCODER in out and "for a codec encoder" in out
    assert dry_run(folder) == 0
    assert "2 tensors are unused; they are for a codec encoder" in capsys.readouterr().err


def test_a_voice_without_a_file_is_noted(folder: Path) -> None:
    (folder / VOICE).unlink()
    found = inspect_checkpoint(folder)
    assert (
        found["loadable"] and "voices without a file: fr_male; fetch them if you need them" in found["notes"]
    )


def test_a_checkpoint_without_a_tokenizer_is_loadable_with_a_note(folder: Path) -> None:
    (folder / "tekken.json").unlink()
    found = inspect_checkpoint(folder)
    assert found["loadable"] and not found["tokenizer"] and "no tokenizer" in found["notes"][0]


def test_languages_and_licence_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert model(["inspect", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "languages              en, fr\n" in out
    assert "licence                none needed: random weights\n" in out


def test_only_weights_of_the_published_shapes_have_the_published_licence(folder: Path) -> None:
    family = open_family("voxtral_tts")
    tiny_release = changed(family, releases=(replace(family.releases[0], size="tiny"),))
    config = family.layout.load_config(folder)
    random = family.open_checkpoint(folder)
    assert tiny_release.release_of(random, config) is None
    save_file(load_file(folder / WEIGHTS), folder / WEIGHTS)  # without the note that they are random
    checkpoint = family.open_checkpoint(folder)
    assert family.release_of(checkpoint, config) is None
    assert family.licence_of(folder, checkpoint, config) == "as the checkpoint's"
    assert tiny_release.release_of(checkpoint, config) is tiny_release.releases[0]
    assert family.licence in tiny_release.licence_of(folder, checkpoint, config)


def test_releases_of_equal_shapes_are_told_apart(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "design", "tiny-voice-design", key="qwen3_tts")
    family = open_family("qwen3_tts")
    for file in sorted((tmp_path / "design").rglob("*.safetensors")):
        save_file(load_file(file), file)  # without the note that they are random
    releases = tuple(
        replace(release, size=release.size.replace("0.6b", "tiny").replace("1.7b", "tiny"))
        for release in family.releases
    )
    known = changed(family, releases=releases)
    config, checkpoint = (
        family.layout.load_config(tmp_path / "design"),
        family.open_checkpoint(tmp_path / "design"),
    )
    release = known.release_of(checkpoint, config)
    assert release and release.name == "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign"
