"""The languages of a checkpoint, from its configuration, its voices or its model card, and its licence."""

import json
import shutil
from pathlib import Path

import pytest

from voxport.bundle.manifest import ExportRequest
from voxport.bundle.names import language_code
from voxport.export.__main__ import main as export
from voxport.export.job import make_job
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.model.download import card_languages, card_licence
from voxport.model.embedded import FOLDER
from voxport.model.families import open_family
from voxport.model.inspection import inspect_checkpoint
from voxport.model.synthetic.checkpoint import write_checkpoint

CARDS = {
    "---\nlanguage: [en]\nlicense: mit\n---\n# Model": {"en"},
    "---\nlanguage:\n- en\n- fr\n---\n": {"en", "fr"},
    "---\nlanguage: de\n---\n": {"de"},
    "---\nlanguage:\n- no\n- English\n- zh-Hans\n- PT_br\n---\n": {"no", "en", "zh", "pt"},
    "\ufeff---\r\nlanguage:\r\n- it\r\n---\r\n": {"it"},
    "---\nlanguage: multilingual\n---\n": set(),
    "---\nlanguage: {en: yes}\n---\n": set(),
    "---\nlanguage:\n---\n": set(),
    "---\n- language\n---\n": set(),
    "---\nlanguage: [en\n---\n": set(),
    "---\nno end": set(),
    "# language: en\n\n---\nlanguage: fr\n---\n": set(),
    "": set(),
}


@pytest.mark.parametrize(("card", "expected"), CARDS.items())
def test_a_card_lists_languages_in_its_head(tmp_path: Path, card: str, expected: set[str]) -> None:
    (tmp_path / "README.md").write_bytes(card.encode())
    assert card_languages(tmp_path) == expected


def test_a_card_that_is_not_readable_names_none(tmp_path: Path) -> None:
    assert card_languages(tmp_path) == set()
    (tmp_path / "README.md").write_bytes(b"---\nlanguage: \xff\n---\n")
    assert card_languages(tmp_path) == set()


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("apache-2.0", "Apache-2.0"),
        ("mit", "MIT"),
        ("cc-by-nc-4.0", "CC-BY-NC-4.0"),
        ("other", ""),
        ("[mit]", ""),
        (r'"mit\e[0m"', ""),
        ("a licence of our own", ""),
    ],
)
def test_a_card_names_a_licence(tmp_path: Path, named: str, expected: str) -> None:
    (tmp_path / "README.md").write_text(f"---\nlicense: {named}\n---\n")
    assert card_licence(tmp_path) == expected


@pytest.mark.parametrize("family", ["voxtral_tts", "voxtral_realtime"])
def test_the_trained_models_speak_english_and_are_free(family: str) -> None:
    source = Source(FOLDER / f"{family.replace('_', '-')}-tiny")
    assert source.languages == ("en",) and source.licence == "Apache-2.0"
    assert inspect_checkpoint(source.folder)["languages"] == ["en"]


def languages(family: str, folder: Path) -> tuple[str, ...]:
    hooks = open_family(family)
    return hooks.languages_of(folder, hooks.layout.load_config(folder))


def test_voices_of_voxtral_tts_have_names_of_languages(folder: Path) -> None:
    assert languages("voxtral_tts", folder) == ("en", "fr")
    config = json.loads((folder / "params.json").read_text())
    voices = config["multimodal"]["audio_tokenizer_args"]["voice"]
    config["multimodal"]["audio_tokenizer_args"]["voice"] = {"anna": 0}
    (folder / "params.json").write_text(json.dumps(config))
    for name in voices:
        (folder / "voice_embedding" / f"{name}.pt").rename(folder / "voice_embedding" / f"x{name}.pt")
    assert languages("voxtral_tts", folder) == ()
    shutil.copy(folder / "voice_embedding" / "xfr_male.pt", folder / "voice_embedding" / "nl_male.pt")
    assert languages("voxtral_tts", folder) == ("nl",)
    (folder / "README.md").write_text("---\nlanguage: vi\n---\n")
    assert languages("voxtral_tts", folder) == ("nl", "vi")


@pytest.mark.parametrize("size", ["tiny", "tiny-custom-voice"])
def test_the_configuration_of_qwen3_tts_lists_languages(tmp_path: Path, size: str) -> None:
    write_checkpoint(tmp_path / "qwen", size, key="qwen3_tts")
    expected = ("de", "en", "es", "fr", "it", "ja", "ko", "pt", "ru", "zh")
    assert languages("qwen3_tts", tmp_path / "qwen") == expected
    path = tmp_path / "qwen" / "config.json"
    config = json.loads(path.read_text())
    ids = config["talker_config"]["codec_language_id"]
    config["talker_config"]["codec_language_id"] = {"Thai": ids["english"], "klingon": ids["french"]}
    config["talker_config"]["spk_is_dialect"] = {}
    path.write_text(json.dumps(config))
    assert languages("qwen3_tts", tmp_path / "qwen") == ("th",)


def test_a_checkpoint_that_names_none_has_those_of_its_family_and_export_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, family = tmp_path / "stt", open_family("voxtral_realtime")
    shutil.copytree(FOLDER / "voxtral-realtime-tiny", folder)
    (folder / "README.md").unlink()
    found = inspect_checkpoint(folder)
    assert found["languages"] == list(family.languages) == list(Source(folder).languages)
    assert any("languages: the checkpoint names none" in note for note in found["notes"])
    command = ["--checkpoint", str(folder), "--target", "onnx", "--dry-run"]
    assert export(command) == 0
    assert capsys.readouterr().err.count("no file names its languages, so they are ar, de,") == 1
    (folder / "README.md").write_text("---\nlanguage: en\n---\n")
    assert export(command) == 0
    assert "languages" not in capsys.readouterr().err


def test_random_weights_need_no_languages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path / "stt", key="voxtral_realtime")
    assert export(["--checkpoint", str(tmp_path / "stt"), "--target", "onnx", "--dry-run"]) == 0
    assert "languages" not in capsys.readouterr().err


def test_the_manifest_has_the_languages(tiny: Path) -> None:
    job = make_job(resolve(Source(tiny), ExportRequest()), open_target("onnx", None), "tiny")
    assert job.languages == ("en", "fr")


@pytest.mark.parametrize("name", ["fr", "FR", "fr-FR", "fr_CA", "French", "FRENCH"])
def test_a_language_has_one_code_in_any_spelling(name: str) -> None:
    assert language_code(name) == "fr"
