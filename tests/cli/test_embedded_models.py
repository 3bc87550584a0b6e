"""`voxport say`, `transcribe` and `serve` without --bundle."""

import json
from pathlib import Path

import pytest
from support.model.micro import micro_checkpoint
from support.stand_ins import noting

from voxport.__main__ import main as voxport
from voxport.bundle.manifest import MANIFEST
from voxport.cli.arguments import embedded_bundle
from voxport.cli.commands import serve
from voxport.runtime import opening
from voxport.runtime.serve.address import bind
from voxport.runtime.text_to_speech import TextToSpeech


@pytest.fixture
def trained(trained_bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The embedded models are the trained ones, as for a user. The families that a command asked for."""
    asked = list[str]()

    def find(family: str, checkpoint: Path) -> Path:
        print("the exporter prints")
        assert checkpoint == micro_checkpoint(family), "of this family"
        asked.append(family)
        return trained_bundles[family]

    monkeypatch.setattr("voxport.export.embedded_bundle.embedded_bundle", find)
    return asked


@pytest.mark.slow
def test_say_and_transcribe_use_the_embedded_models(
    trained: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "speech.wav"
    assert voxport(["say", "It is sunny in Paris today.", "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out), "what the export prints is not on stdout"
    assert voxport(["transcribe", str(out)]) == 0
    assert len(capsys.readouterr().out.split()) > 2
    assert voxport(["info"]) == 0
    assert "clear_female" in capsys.readouterr().out
    assert trained == ["voxtral_tts", "voxtral_realtime", "voxtral_tts"]


def test_another_bundle_replaces_the_embedded_one(trained: list[str], bundles: Path, tmp_path: Path) -> None:
    out = tmp_path / "speech.wav"
    command = ["say", "Hi.", "-o", str(out), "--bundle", str(bundles / "onnx"), "--max-frames", "1"]
    assert voxport(command) == 0
    assert not trained


def test_an_installed_bundle_is_used_but_in_a_clone_it_may_be_older_than_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported, installed = tmp_path / "exported", tmp_path / "voxtral-tts-tiny"
    monkeypatch.setattr("voxport.export.embedded_bundle.embedded_bundle", lambda *_: exported)
    monkeypatch.setattr(opening, "PACKAGED", tmp_path)
    installed.mkdir()
    (installed / MANIFEST).touch()
    assert embedded_bundle(TextToSpeech) == exported
    monkeypatch.setattr(opening, "IS_CLONE", False)
    assert embedded_bundle(TextToSpeech) == installed


def test_both_models_are_served(
    trained: list[str], trained_bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = list[Path]()
    monkeypatch.setattr(
        serve, "serve_bundles", noting(lambda *_: 0, lambda arguments, ready: served.extend(arguments.bundle))
    )
    with bind("127.0.0.1", 0) as free:
        port = str(free.port)
    assert voxport(["serve", "--port", port]) == 0
    assert served == list(trained_bundles.values())
