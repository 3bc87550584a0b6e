"""What a converted folder has besides weights: tokenizer, voices and other files, checked beforehand."""

import resource
import shutil
from pathlib import Path

import pytest
import torch
from support.export.conversions import FOLDERS, convert

from voxport.export.conversion import convert as converting
from voxport.export.conversion.convert import write_files
from voxport.export.conversion.plan import Plan
from voxport.model.synthetic.checkpoint import random_checkpoint

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 14910348\n"
TOKENIZERS = {"voxtral_tts": "tekken.json", "voxtral_realtime": "tekken.json", "qwen3_tts": "vocab.json"}


@pytest.fixture(params=TOKENIZERS)
def complete(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint with a tokenizer."""
    return Path(shutil.copytree(random_checkpoint(request.param), tmp_path / request.param))


@pytest.mark.parametrize("to", ["mlx", "published"])
def test_a_tokenizer_that_is_not_complete_is_refused(
    complete: Path, tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = complete / TOKENIZERS[complete.name]
    for text, says in ((POINTER, "git lfs pull"), ('{"half": ', "not readable as JSON")):
        path.write_text(text)
        capsys.readouterr()
        assert convert(complete, tmp_path / "out", "--to", to) == 5
        error = capsys.readouterr().err
        assert f"{path}: " in error and says in error
        assert not (tmp_path / "out").exists()
    path.unlink()
    path.with_name(f"{path.name}.incomplete").write_text("{")
    assert convert(complete, tmp_path / "out", "--to", to) == 5
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", [POINTER, '{"half": '])
@pytest.mark.parametrize("name", ["preprocessor_config.json", "speech_tokenizer/configuration.json"])
def test_a_copied_file_that_is_not_complete_is_refused(
    tmp_path: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(FOLDERS["qwen3_tts"], tmp_path / "source")
    (folder / name).write_text(text)
    assert convert(folder, tmp_path / "out", "--to", "mlx") == 5
    assert f"{folder / name}: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_tokenizer_is_a_warning(
    complete: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = f"{complete}: no tokenizer"
    assert convert(complete, tmp_path / "first", "--to", "mlx") == 0
    assert warning not in capsys.readouterr().err
    for name in ("tekken.json", "vocab.json", "merges.txt", "tokenizer_config.json"):
        (complete / name).unlink(missing_ok=True)
    assert convert(complete, tmp_path / "out", "--to", "mlx") == 0
    assert warning in capsys.readouterr().err


def test_a_damaged_voice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = shutil.copytree(FOLDERS["voxtral_tts"], tmp_path / "source")
    voice = source / "voice_embedding" / "fr_male.pt"
    voice.write_bytes(voice.read_bytes()[:-100])
    assert convert(source, tmp_path / "out", "--to", "mlx") == 5
    assert str(voice) in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["mlx", "published"])
def test_a_voice_that_fills_the_disk_is_one_line_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit on the size of files has the same effect."""
    source = shutil.copytree(FOLDERS["voxtral_tts"], tmp_path / "source")
    voice = source / "voice_embedding" / "fr_male.pt"
    rows = torch.load(voice, weights_only=True)
    torch.save(rows.repeat(1500 // len(rows), 1), voice)
    size, limits = voice.stat().st_size // 2, resource.getrlimit(resource.RLIMIT_FSIZE)
    write = write_files

    def limited(plan: Plan, folder: Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            write(plan, folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(converting, "write_files", limited)
    assert convert(source, tmp_path / "out", "--to", to) == 3
    error = capsys.readouterr().err
    assert "File too large; raise the limit" in error and "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
