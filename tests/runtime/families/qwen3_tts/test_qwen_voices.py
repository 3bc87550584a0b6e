"""Voices of other programs, and blends of voices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from support.runtime.speech_tasks import ToyVoxtral
from support.stand_ins import stand_in

from voxport.__main__ import main as voxport
from voxport.bundle.errors import UsageError
from voxport.export.resolve import Source
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.runtime.families.qwen3_tts.prompt import Voice
from voxport.runtime.families.qwen3_tts.task import QwenTextToSpeech
from voxport.runtime.families.qwen3_tts.voices import choose_voice, model_digest, read_foreign_voice


def dim(task: QwenTextToSpeech) -> int:
    return task._constants.dim


def item(task: QwenTextToSpeech, **changes: object) -> dict[str, Any]:
    """A voice as the official demo writes it."""
    generator = torch.Generator().manual_seed(0)
    return {
        "ref_code": torch.randint(0, 16, (5, task._constants.n_codebooks), generator=generator),
        "ref_spk_embedding": torch.randn(dim(task), generator=generator),
        "x_vector_only_mode": False,
        "icl_mode": True,
        "ref_text": "How are you?",
    } | changes


def saved(content: object, path: Path) -> Path:
    torch.save(content, path)
    return path


def opened(task: QwenTextToSpeech, content: bytes, path: Path) -> Voice:
    path.write_bytes(content)
    return choose_voice(task.bundle, task._constants, str(path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_voice_of_the_official_demo(task: QwenTextToSpeech, tmp_path: Path, dtype: torch.dtype) -> None:
    asked = item(task)
    asked["ref_spk_embedding"] = asked["ref_spk_embedding"].to(dtype)
    path = saved({"items": [asked]}, tmp_path / "anna.pt")
    voice = opened(task, task.import_voice(path), tmp_path / "anna.safetensors")
    np.testing.assert_array_equal(voice.speaker, asked["ref_spk_embedding"].float().numpy())
    assert voice.reference
    np.testing.assert_array_equal(voice.reference.codes, asked["ref_code"].numpy())
    assert voice.reference.text.tolist() == task._builder.ids("How are you?")


def test_a_vector_alone(task: QwenTextToSpeech, tmp_path: Path) -> None:
    vector = np.linspace(-1, 1, dim(task), dtype=np.float32)
    only = item(task, ref_spk_embedding=torch.from_numpy(vector), x_vector_only_mode=True, ref_code=None)
    bare = {"ref_spk_embedding": torch.from_numpy(vector)}
    paths = [saved({"items": [only]}, tmp_path / "a.pt"), tmp_path / "b.npy", tmp_path / "c.safetensors"]
    paths.append(saved({"items": [bare]}, tmp_path / "d.pt"))
    np.save(paths[1], vector.astype(np.float64))
    save_file({"vector": vector[None]}, paths[2])
    for path in paths:
        voice = opened(task, task.import_voice(path), tmp_path / f"{path.stem}-voice.safetensors")
        np.testing.assert_array_equal(voice.speaker, vector)
        assert voice.reference is None


class Harmful:
    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return print, ("this ran",)


def test_no_code_of_a_file_runs(
    task: QwenTextToSpeech, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content in (Harmful(), {"items": [{"ref_spk_embedding": Harmful()}]}, {"items": [Harmful()]}):
        with pytest.raises(UsageError, match=r"a\.pt: names \w+\.print, which is no part of a voice"):
            task.import_voice(saved(content, tmp_path / "a.pt"))
    np.save(tmp_path / "a.npy", np.array([Harmful()]), allow_pickle=True)
    with pytest.raises(UsageError, match="not a readable"):
        task.import_voice(tmp_path / "a.npy")
    assert "this ran" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ref_spk_embedding": torch.zeros(3)}, r"a vector of shape \[3\], the model has"),
        ({"ref_spk_embedding": torch.full((96,), torch.nan)}, "finite vector"),
        ({"ref_spk_embedding": None}, "not an array of floats"),
        ({"ref_spk_embedding": torch.zeros(4, 4).T[:2]}, "not contiguous"),
        ({"ref_code": torch.zeros(5, 3, dtype=torch.long)}, r"codes of shape \[5, 3\]"),
        ({"ref_code": torch.full((5, 6), -1)}, "codes.*does not have"),
        ({"ref_code": torch.zeros(0, 6, dtype=torch.long)}, "ref_code: expected integers"),
        ({"ref_code": "codes"}, "ref_code: expected integers"),
        ({"ref_text": 5}, "ref_text: expected a text"),
        ({"ref_text": "\nA line break"}, r"anna\.pt: ref_text: it begins with a line break"),
        ({"ref_text": "..."}, r"anna\.pt: ref_text: '\.\.\.' has no word"),
        ({"ref_text": "word " * 5000}, r"anna\.pt: a transcript of \d+ tokens, expected 1 to 4096"),
        ({"ref_text": None}, r"anna\.pt: no ref_text; expected codes of a recording and its transcript"),
        ({"ref_text": " "}, r"anna\.pt: no ref_text; expected"),
        ({"ref_code": None}, r"anna\.pt: no ref_code; expected"),
        ({"ref_code": None, "ref_text": ""}, r"anna\.pt: no ref_code and no ref_text; expected"),
    ],
)
def test_a_wrong_item_is_named(
    task: QwenTextToSpeech, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path = saved({"items": [item(task, **changes)]}, tmp_path / "anna.pt")
    with pytest.raises(UsageError, match=says):
        task.import_voice(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [({"items": []}, "expected a voice of the official demo"), ([1], "official demo"), ("text", "official")],
)
def test_another_file_of_torch_is_named(
    task: QwenTextToSpeech, tmp_path: Path, content: str | list[int], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        task.import_voice(saved(content, tmp_path / "anna.pt"))


def test_two_voices_in_a_file_are_refused(task: QwenTextToSpeech, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 voices, expected one"):
        read_foreign_voice(saved({"items": [item(task)] * 2}, tmp_path / "anna.pt"))


@pytest.mark.parametrize(("name", "says"), [("a.txt", "expected a voice in one of"), ("a.pt", "is missing")])
def test_a_missing_or_unknown_file_is_refused(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_foreign_voice(tmp_path / name)


def test_a_cut_file_is_refused(task: QwenTextToSpeech, tmp_path: Path) -> None:
    path = saved({"items": [item(task)]}, tmp_path / "anna.pt")
    for size in (0, 10, path.stat().st_size // 2, path.stat().st_size - 30):
        (tmp_path / "cut.pt").write_bytes(path.read_bytes()[:size])
        with pytest.raises(UsageError, match=r"cut\.pt: not a readable"):
            read_foreign_voice(tmp_path / "cut.pt")


def voice_files(task: QwenTextToSpeech, folder: Path, **vectors: np.ndarray) -> list[str]:
    for name, vector in vectors.items():
        np.save(folder / f"{name}.npy", vector)
        (folder / f"{name}.safetensors").write_bytes(task.import_voice(folder / f"{name}.npy"))
    return [str(folder / f"{name}.safetensors") for name in vectors]


def test_a_blend_is_the_weighted_mean(task: QwenTextToSpeech, tmp_path: Path) -> None:
    low, high = np.zeros(dim(task), np.float32), np.full(dim(task), 4, np.float32)
    first, second = voice_files(task, tmp_path, low=low, high=high)
    voice = opened(task, task.blend_voices({first: 3, second: 1}), tmp_path / "blend.safetensors")
    np.testing.assert_allclose(np.asarray(voice.speaker), 1)  # the weights are divided by their sum
    assert voice.reference is None


def test_a_blend_says_that_it_leaves_transcribed_recordings_out(
    task: QwenTextToSpeech, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (plain,) = voice_files(task, tmp_path, plain=np.zeros(dim(task), np.float32))
    anna = tmp_path / "anna.safetensors"
    anna.write_bytes(task.import_voice(saved({"items": [item(task)]}, tmp_path / "anna.pt")))
    voice = opened(task, task.blend_voices({plain: 1, str(anna): 1}), tmp_path / "blend.safetensors")
    assert voice.reference is None
    (message,) = [record.message for record in caplog.records if "blend" in record.message]
    assert str(anna) in message and plain not in message


def test_a_voice_file_has_hashes_of_what_it_was_made_from(task: QwenTextToSpeech, tmp_path: Path) -> None:
    first = saved({"items": [item(task)]}, tmp_path / "a.pt")
    other = saved({"items": [item(task, ref_text="I am well.")]}, tmp_path / "b.pt")
    found = []
    for path in (first, first, other):
        (tmp_path / "voice.safetensors").write_bytes(task.import_voice(path))
        with safe_open(tmp_path / "voice.safetensors", framework="numpy") as file:
            found.append(file.metadata())
    assert found[0] == found[1] and found[0].keys() == {"model", "source_sha256", "transcript_sha256"}
    assert all(found[0][name] != found[2][name] for name in ("source_sha256", "transcript_sha256"))


@pytest.fixture
def voice(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    task: QwenTextToSpeech,
) -> Callable[..., tuple[int, str]]:
    """Runs the command on the task in place of a bundle. Returns exit code and error line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("voxport.runtime.opening.open_task", lambda *_: task)

    def run(*arguments: str) -> tuple[int, str]:
        code = voxport(["voice", *arguments, "--bundle", "none"])
        lines = capsys.readouterr().err.splitlines()
        return code, "".join(line for line in lines if line.startswith("voxport: error"))

    return run


def test_the_commands(voice: Callable[..., tuple[int, str]], task: QwenTextToSpeech, tmp_path: Path) -> None:
    np.save("anna.npy", np.zeros(dim(task)))
    np.save("ben.npy", np.ones(dim(task)))
    for name in ("anna", "ben"):
        assert voice("import", name, f"{name}.npy") == (0, "")
    assert voice("blend", "both", "anna=0.5", "ben=1.5") == (0, "")
    found = choose_voice(task.bundle, task._constants, "both")
    np.testing.assert_allclose(np.asarray(found.speaker), 0.75)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("blend", "x", "anna"), "anna: expected VOICE=WEIGHT"),
        (("blend", "x", "anna=much", "ben=1"), "anna=much: expected VOICE=WEIGHT"),
        (("blend", "x", "anna=1"), "at least two voices"),
        (("blend", "x", "anna=1", "ben=0"), "a weight above 0"),
        (("blend", "x", "anna=1", "ben=inf"), "a weight above 0"),
        (("blend", "x", "anna=1", "anna=2"), "anna comes twice"),
        (("blend", "x", "anna=1", "ben=1"), "voice anna: unknown voice"),
        (("import", "x", "a.npy", "b.npy"), "expected one file, got 2"),
        (("add", "x", "--transcript", "Hi."), "and then a SOURCE"),
        (("import", "x", "a.npy", "--transcript", "Hi."), "--transcribe-with are for voice add"),
        (("import", "x", "a.npy", "-o", "x.npy"), "ends in .safetensors"),
        (("import", "x", "a.npy"), "a.npy: is missing"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(
    voice: Callable[..., tuple[int, str]], tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    code, line = voice(*arguments)
    assert code == 2 and says in line
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_voice_belongs_to_weights_and_vocabulary() -> None:
    """Other files of a checkpoint, such as the defaults of sampling, may change."""
    source = Source(random_checkpoint("qwen3_tts"))
    names = source.family.layout.source_files(source.folder)

    def digest(changed: str = "") -> str:
        files = {name: stand_in(sha256="1" if name == changed else "0") for name in names}
        return model_digest(stand_in(job=stand_in(source=stand_in(files=files))))

    assert {name for name in names if digest(name) != digest()} == {
        "model.safetensors",
        "speech_tokenizer/model.safetensors",
        "vocab.json",
        "merges.txt",
    }


def test_a_model_without_clones_says_so(tmp_path: Path) -> None:
    calls: tuple[Callable[[Any], object], ...] = (ToyVoxtral().import_voice, ToyVoxtral().blend_voices)
    for call in calls:
        with pytest.raises(UsageError, match="makes no voices"):
            call(tmp_path)
