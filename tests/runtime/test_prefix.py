"""The stored cache rows of a voice: exact, computed again if damaged; saving and loading rows."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.bundle_options import write_hashes
from support.runtime.opened_tasks import open_speech
from support.runtime.prefix_caches import wait_until_written
from support.stand_ins import noting

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.runtime.engines import open_engine
from voxport.runtime.families.voxtral_tts.decoder import VoxtralDecoder

TARGETS = ["onnx", "executorch", "coreml", "coreai"]


@pytest.fixture
def copy(bundles: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(shutil.copytree(bundles / request.param, tmp_path / "bundle"))


def spoken(bundle: Path, text: str = "Hello there.", voice: str | None = None) -> np.ndarray:
    task = open_speech(bundle)
    samples: np.ndarray = np.concatenate(list(task.speak(text, voice=voice, seed=3, max_frames=4)))
    wait_until_written()
    return samples


def prefixes() -> Path:
    return Path(os.environ["XDG_CACHE_HOME"]) / "voxport" / "prefixes"


def kept() -> list[Path]:
    return sorted(prefixes().glob("*"))


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("copy", TARGETS, indirect=True)
def test_speech_from_stored_rows_is_bit_identical(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = spoken(copy)
    assert len(kept()) == 1
    prefilled = []
    run = VoxtralDecoder.prefill
    monkeypatch.setattr(
        VoxtralDecoder, "prefill", noting(run, lambda self, ids, *_: prefilled.append(len(ids)))
    )
    np.testing.assert_array_equal(spoken(copy), first)
    assert len(prefilled) == 1  # of the text alone
    other = spoken(copy, "Something else.")
    assert len(prefilled) == 2 and len(kept()) == 1
    shutil.rmtree(prefixes())
    np.testing.assert_array_equal(spoken(copy, "Something else."), other)


@pytest.mark.parametrize("copy", ["onnx"], indirect=True)
def test_damaged_rows_are_computed_again_and_bundles_do_not_share_rows(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = spoken(copy)
    (path,) = kept()
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    np.testing.assert_array_equal(spoken(copy), first)
    assert "damaged" in caplog.text and path.read_bytes() != bytes(content)
    path.write_bytes(content[:100])
    np.testing.assert_array_equal(spoken(copy), first)
    path.unlink()
    os.mkfifo(path)  # opening it would wait for ever
    np.testing.assert_array_equal(spoken(copy), first)
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    spoken(copy)
    assert len(kept()) == 2


@pytest.mark.parametrize("copy", ["onnx"], indirect=True)
def test_voices_of_equal_length_do_not_share_rows(copy: Path) -> None:
    one, two = sorted((copy / "voices").glob("*.safetensors"))[:2]
    rows = load_file(one)["embedding"]
    save_file({"embedding": rows[::-1].copy()}, two)
    write_hashes(copy, two.relative_to(copy).as_posix())
    expected = {}
    for voice in (one.stem, two.stem):
        expected[voice] = spoken(copy, voice=voice)
        shutil.rmtree(prefixes())
    assert not np.array_equal(expected[one.stem], expected[two.stem])
    for voice in (one.stem, two.stem, one.stem):
        np.testing.assert_array_equal(spoken(copy, voice=voice), expected[voice])
    assert len(kept()) == 2


@pytest.mark.parametrize("copy", ["onnx"], indirect=True)
def test_speech_does_not_need_a_prefix_folder(copy: Path) -> None:
    prefixes().parent.mkdir(parents=True)
    prefixes().write_text("a file where the folder would be")
    assert len(spoken(copy)) and len(spoken(copy))


@pytest.mark.parametrize("target", TARGETS)
def test_loading_rows_does_not_change_other_rows(bundles: Path, target: str) -> None:
    engine = open_engine(Bundle(bundles / target))
    first, second = engine.stream(), engine.stream()
    rng = np.random.default_rng(0)
    dim = int(first.signatures["prefill"].inputs[0].shape[-1])
    signature: Any = first.signatures["prefill"]
    axis = signature.cache.cache.row_axis
    embeddings = rng.standard_normal((1, 7, dim), dtype=np.float32)
    first.run("prefill", {"embeddings": embeddings, "position": np.array([0])})
    rows = first.save("prefill", 5)
    assert {array.shape[axis] for array in rows.values()} == {5}
    second.load(rows)
    for name, array in second.save().items():
        if name in rows:
            np.testing.assert_array_equal(np.take(array, range(5), axis), rows[name])
            assert not np.take(array, range(5, array.shape[axis]), axis).any()
    step = {"embeddings": embeddings[:, 5:6], "position": np.array([5])}
    # the rows behind position 5 of the first stream are masked
    np.testing.assert_array_equal(
        second.run("decode_step", step)["hidden"], first.run("decode_step", step)["hidden"]
    )
    name = next(iter(rows))
    with pytest.raises(UsageError, match="this bundle has"):
        second.load(rows | {name: rows[name][..., :3]})
    with pytest.raises(UsageError, match="no such state"):
        second.load({f"{name}_": rows[name]})
