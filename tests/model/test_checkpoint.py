"""Strict reading: a tensor that does not match params.json is an error that names it."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from voxport.bundle.bounds import MAX_VOICE_BYTES
from voxport.bundle.errors import CheckpointError
from voxport.model.checkpoint import Checkpoint, expected_tensors, materialize
from voxport.model.checkpoint_layout import WeightFile
from voxport.model.mistral_layout import WEIGHTS
from voxport.model.voxtral_tts.family import FAMILY
from voxport.model.voxtral_tts.layouts import MISTRAL
from voxport.model.voxtral_tts.sizes import SIZES

NORM = "layers.1.attention_norm.weight"
TABLE = "mm_audio_embeddings.audio_codebook_embeddings.embeddings.weight"


def change(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Replaces, adds or (None) removes tensors."""
    tensors = load_file(folder / WEIGHTS) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / WEIGHTS)


def checkpoint_of(folder: Path) -> Checkpoint:
    return Checkpoint(MISTRAL.weight_files(folder))


def voices_of(folder: Path) -> dict[str, torch.Tensor]:
    return MISTRAL.voices(folder, FAMILY.config_of_size("tiny"))


def open_folder(folder: Path) -> Any:
    return FAMILY.open_root(MISTRAL.load_config(folder), checkpoint_of(folder))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_folder(folder)
    assert caught.value.exit_code == 5
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_opening_checks_every_tensor_and_loads_none(tiny: Path) -> None:
    root = open_folder(tiny)
    assert all(parameter.is_meta for parameter in root.parameters())


def test_loading_takes_only_what_lies_below_a_prefix(tiny: Path) -> None:
    checkpoint, root = checkpoint_of(tiny), open_folder(tiny)
    materialize(root, checkpoint, ["layers.1", "norm"])
    loaded = {name for name, parameter in root.named_parameters() if not parameter.is_meta}
    assert loaded == {name for name in checkpoint.names if name.startswith(("layers.1.", "norm."))}
    assert torch.equal(dict(root.named_parameters())[NORM], checkpoint.tensor(NORM).float())


def test_a_quantizer_may_replace_a_linear_while_it_is_loaded(tiny: Path) -> None:
    root, taken = open_folder(tiny), []

    def convert(path: str, module: torch.nn.Module, weight: torch.Tensor) -> torch.nn.Module | None:
        taken.append((path, weight.dtype))
        return torch.nn.Identity() if path.endswith("wq") else None

    materialize(root, checkpoint_of(tiny), ["layers.0.attention"], convert)
    assert taken == [(f"layers.0.attention.{name}", torch.bfloat16) for name in ("wq", "wk", "wv", "wo")]
    assert isinstance(root.layers[0].attention.wq, torch.nn.Identity)
    assert root.layers[0].attention.wk.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({NORM: None}, f"{NORM} missing"),
        ({NORM: None, "layers.1.ffn_norm.weight": None}, f"{NORM} and 1 more missing"),
        (
            {"layers.7.attention_norm.weight": torch.ones(96)},
            "layers.7.attention_norm.weight not part of the model",
        ),
        *(
            ({NORM: torch.ones(shape)}, f"{NORM}: shape {list(shape)}, expected [96]")
            for shape in ((95,), (96, 1), ())
        ),
        *(
            ({NORM: torch.ones(96).to(dtype)}, f"{NORM}: dtype")
            for dtype in (torch.int8, torch.int64, torch.bool, torch.float64)
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    folder: Path, changes: dict[str, torch.Tensor | None], said: str
) -> None:
    change(folder, changes)
    assert said in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_float16_and_float32_tensors_are_loaded(folder: Path, dtype: torch.dtype) -> None:
    change(folder, {NORM: torch.ones(96, dtype=dtype)})
    open_folder(folder)


def test_a_checkpoint_of_another_size_than_its_configuration_is_refused(folder: Path) -> None:
    params = json.loads((folder / "params.json").read_text())
    params["n_layers"] = 3
    (folder / "params.json").write_text(json.dumps(params))
    assert "tensor layers.2." in refusal(folder)


def test_a_table_without_rows_for_special_codes_is_refused(folder: Path) -> None:
    """Some tools pad the parts of the table at small sizes. Codes then address rows beyond its end."""
    config = MISTRAL.load_config(folder)
    audio = config.audio
    padded = -(-audio.acoustic_codebook_size * audio.n_acoustic_codebook // 128) * 128
    rows = config.semantic_rows + padded
    assert rows < config.addressed_code_rows
    change(folder, {TABLE: torch.zeros(rows, config.dim)})
    assert f"tensor {TABLE}: shape [{rows}, " in refusal(folder)


@pytest.mark.parametrize("kept", [0, 7, 8, 1000, 0.5, -1])
def test_a_truncated_file_is_named(folder: Path, kept: float) -> None:
    content = (folder / WEIGHTS).read_bytes()
    length = int(len(content) * kept) if isinstance(kept, float) else kept
    (folder / WEIGHTS).write_bytes(content[:length])
    assert WEIGHTS in refusal(folder)


def test_a_missing_weight_file_is_named(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    assert f"{WEIGHTS}: missing" in refusal(folder)


@pytest.fixture
def sharded(tmp_path: Path) -> list[WeightFile]:
    """Two shards of one model, and a part in a sub-folder whose tensor names collide with theirs."""
    (tmp_path / "part").mkdir()
    contents = {"one": {"a.weight": 1.0}, "two": {"b.weight": 2.0}, "part/one": {"a.weight": 3.0}}
    for name, tensors in contents.items():
        save_file({key: torch.full((2,), value) for key, value in tensors.items()}, tmp_path / name)
    return [
        WeightFile(tmp_path / "one"),
        WeightFile(tmp_path / "two"),
        WeightFile(tmp_path / "part/one", "part."),
    ]


def test_several_files_are_one_checkpoint_and_a_prefix_separates_equal_names(
    sharded: list[WeightFile],
) -> None:
    checkpoint = Checkpoint(sharded)
    found = {name: float(checkpoint.tensor(name)[0]) for name in checkpoint.names}
    assert found == {"a.weight": 1.0, "b.weight": 2.0, "part.a.weight": 3.0}
    assert checkpoint.size == sum(file.path.stat().st_size for file in sharded)


@pytest.mark.parametrize(
    ("expected", "file", "said"),
    [
        ({"a.weight": (2,), "b.weight": (2,), "part.a.weight": (2,), "part.c": (1,)}, 2, "part.c missing"),
        ({"a.weight": (2,), "b.weight": (3,), "part.a.weight": (2,)}, 1, "b.weight: shape [2], expected [3]"),
        ({"a.weight": (2,), "b.weight": (2,)}, 2, "part.a.weight not part"),
    ],
)
def test_an_error_names_the_file_of_the_tensor(
    sharded: list[WeightFile], expected: dict[str, tuple[int, ...]], file: int, said: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(sharded).check(expected)
    assert str(caught.value).startswith(f"{sharded[file].path}: tensor ")
    assert said in str(caught.value)


def test_a_tensor_in_two_files_is_refused_if_its_values_differ(sharded: list[WeightFile]) -> None:
    with pytest.raises(CheckpointError, match=r"tensor a\.weight: also in .*, with other values"):
        Checkpoint([WeightFile(file.path) for file in sharded])
    shutil.copyfile(sharded[0].path, sharded[2].path)
    assert Checkpoint([WeightFile(file.path) for file in sharded]).names == {"a.weight", "b.weight"}


def test_the_published_configuration_describes_the_published_tensors() -> None:
    shapes = expected_tensors(FAMILY.build_root(FAMILY.config_of_size("full")))
    assert len(shapes) == 386
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 4_002_353_392
    for name, shape in {
        "layers.25.attention.wq.weight": (4096, 3072),
        "layers.0.feed_forward.w2.weight": (3072, 9216),
        TABLE: (9088, 3072),
        "acoustic_transformer.semantic_codebook_output.weight": (8320, 3072),
        "acoustic_transformer.input_projection.weight": (3072, 36),
        "audio_tokenizer.decoder_blocks.0.conv.parametrizations.weight.original1": (1024, 292, 3),
        "audio_tokenizer.decoder_blocks.6.conv.parametrizations.weight.original1": (1024, 1024, 4),
        "audio_tokenizer.decoder_blocks.7.layers.1.attention_scale": (1024,),
        "audio_tokenizer.output_proj.conv.parametrizations.weight.original0": (240, 1, 1),
        "audio_tokenizer.quantizer.semantic_codebook.cluster_usage": (8192,),
    }.items():
        assert shapes[name] == shape


def test_voices_are_listed_by_name_with_their_stored_values(tiny: Path) -> None:
    voices = voices_of(tiny)
    assert list(voices) == ["casual_male", "fr_male", "neutral_female"]
    assert {name: tuple(rows.shape) for name, rows in voices.items()} == {
        name: (count, 96) for name, count in SIZES["tiny"].voices.items()
    }
    assert all(rows.dtype == torch.bfloat16 for rows in voices.values())


def test_a_checkpoint_without_voices_has_none(tmp_path: Path) -> None:
    assert voices_of(tmp_path) == {}


class Evil:
    """Would run code if it were unpickled without restriction."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return print, ("executed",)


BAD_VOICES = {
    "one-dimensional": (torch.ones(96), "shape [96]"),
    "of another width": (torch.ones(5, 64), "shape [5, 64]"),
    "without rows": (torch.ones(0, 96), "shape [0, 96]"),
    "of integers": (torch.ones(5, 96, dtype=torch.int32), "torch.int32"),
    "not finite": (torch.full((5, 96), float("nan")), "not finite"),
    "in a dict": ({"embedding": torch.ones(5, 96)}, "a dict"),
    "sparse": (torch.ones(5, 96).to_sparse(), "tensor"),
    # torch 2.15 does not read it
    "nested": (torch.nested.nested_tensor([torch.ones(2, 96), torch.ones(3, 96)]), "expected one tensor"),
    "without values": (torch.ones(5, 96, device="meta"), "meta"),
    "expanded": (torch.ones(1, 96).expand(10**9, 96), "shape [1000000000, 96]"),
    "of 8 bits": (torch.ones(5, 96).to(torch.float8_e4m3fn), "float8_e4m3fn"),
    "of 64 bits": (torch.full((5, 96), 1e300, dtype=torch.float64), "torch.float64"),
    "executable": (Evil(), "not readable"),
}


@pytest.mark.parametrize(("content", "said"), BAD_VOICES.values(), ids=BAD_VOICES)
def test_a_bad_voice_is_named_with_what_was_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, said: str
) -> None:
    (tmp_path / "voice_embedding").mkdir()
    torch.save(content, tmp_path / "voice_embedding" / "some_voice.pt")
    with pytest.raises(CheckpointError) as caught:
        voices_of(tmp_path)
    message = str(caught.value)
    assert "some_voice.pt" in message and said in message and "[N, 96]" in message
    assert "\n" not in message
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.9])
def test_a_truncated_voice_is_named(folder: Path, kept: float) -> None:
    path = folder / "voice_embedding" / "fr_male.pt"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(CheckpointError, match=r"fr_male\.pt"):
        voices_of(folder)


def test_an_archive_that_grows_when_it_is_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "voice_embedding").mkdir()
    path = tmp_path / "voice_embedding" / "some_voice.pt"
    torch.save(torch.ones(5, 96), tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for entry in plain.infolist():
            archive.writestr(entry.filename, plain.read(entry))
        with archive.open("plain/zeros", "w", force_zip64=True) as zeros:
            for _ in range(MAX_VOICE_BYTES // 2**20 + 1):
                zeros.write(bytes(2**20))
    with pytest.raises(CheckpointError, match=r"some_voice\.pt.*make sense"):
        voices_of(tmp_path)


def test_a_voice_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "voice_embedding").mkdir()
    os.mkfifo(tmp_path / "voice_embedding" / "some_voice.pt")
    with pytest.raises(CheckpointError, match="not a file"):
        voices_of(tmp_path)
