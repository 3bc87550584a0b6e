"""`codec encode` and `codec decode`: codes of a recording, speech of codes, and what is refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from support.export.faulty_engines import Engines
from support.runtime.speech_tasks import ToyVoxtral, qwen_engines, qwen_task
from support.runtime.toy_speech import CONSTANTS, FRAME

from voxport.__main__ import main as voxport
from voxport.bundle.bounds import MAX_CODE_FRAMES
from voxport.bundle.errors import UsageError
from voxport.runtime.audio.files import pcm16
from voxport.runtime.codes import check_codes, read_codes, write_codes
from voxport.runtime.engines.base import Stream
from voxport.runtime.families.qwen3_tts.cloning import encode_reference
from voxport.runtime.families.qwen3_tts.decoder import QwenDecoder
from voxport.runtime.text_to_speech import TextToSpeech

RATE, SPAN = 24_000, 0.7  # of the recordings, in seconds
BEFORE = b"a file from before"


@pytest.fixture(scope="module")
def engines() -> Engines:
    return qwen_engines()


@pytest.fixture
def codec(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], engines: Engines
) -> Callable[..., tuple[int, str]]:
    """Runs the command in `tmp_path` on a task in place of a bundle. Returns exit code and error line."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, task: TextToSpeech | None = None) -> tuple[int, str]:
        opened = task or qwen_task(engines)
        monkeypatch.setattr("voxport.runtime.opening.open_task", lambda *_: opened)
        code = voxport(["codec", *arguments, "--bundle", "none"])
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("voxport: error")]
        assert len(errors) == (code != 0)
        return code, "".join(errors)

    return run


def recorded(name: str, rate: int = RATE, channels: int = 1, seconds: float = SPAN) -> np.ndarray:
    """Writes noise, and returns what the file holds: float32 [n, channels]."""
    noise = np.random.default_rng(3).uniform(-0.4, 0.4, (round(seconds * rate), channels))
    soundfile.write(name, noise, rate, "PCM_16")
    samples: np.ndarray = soundfile.read(name, dtype="float32", always_2d=True)[0]
    return samples


def read(name: str) -> dict[str, np.ndarray]:
    with np.load(name, allow_pickle=False) as file:
        return dict(file)


def test_encode_writes_the_codes_of_the_mixed_and_resampled_recording(
    codec: Callable[..., tuple[int, str]], engines: Engines
) -> None:
    samples = recorded("in.flac", 44_100, 2)
    assert codec("encode", "in.flac", "out.npz") == (0, "")
    found = read("out.npz")
    assert found.keys() == {"codes", "sample_rate"} and found["sample_rate"] == RATE
    expected = encode_reference(
        engines.eager.stream(), soxr.resample(samples.mean(axis=1), 44_100, RATE, "HQ")
    )
    assert found["codes"].dtype == np.int64
    assert found["codes"].shape == (-(-round(SPAN * RATE) // 1920), engines.constants.n_codebooks)
    np.testing.assert_array_equal(found["codes"], expected)


def test_decode_writes_the_speech_of_the_codes(
    codec: Callable[..., tuple[int, str]], engines: Engines
) -> None:
    recorded("in.wav")
    codec("encode", "in.wav", "codes.npz")
    assert codec("decode", "codes.npz", "out.wav") == (0, "")
    written, rate = soundfile.read("out.wav", dtype="int16")
    codes = read("codes.npz")["codes"]
    expected = QwenDecoder(engines.eager.stream(), engines.constants).decode(codes)
    assert rate == RATE and len(written) == 1920 * len(codes)
    assert written.astype("<i2").tobytes() == pcm16(expected)


def test_the_codes_of_one_sample_are_a_frame(codec: Callable[..., tuple[int, str]]) -> None:
    soundfile.write("one.wav", np.array([0.5]), RATE)
    assert codec("encode", "one.wav", "one.npz")[0] == 0
    assert len(read("one.npz")["codes"]) == 1


def test_codes_of_any_integer_type_are_decoded(
    codec: Callable[..., tuple[int, str]], engines: Engines
) -> None:
    codes = np.full((2, engines.constants.n_codebooks), 7, ">u2")
    np.savez_compressed("in.npz", codes=codes, sample_rate=np.uint16(RATE))
    assert codec("decode", "in.npz", "out.wav")[0] == 0
    np.save("in.npy", codes)
    assert codec("decode", "in.npy", "alone.wav")[0] == 0
    assert Path("alone.wav").read_bytes() == Path("out.wav").read_bytes()
    np.save("long.npy", np.zeros((10**6, engines.constants.n_codebooks), np.int8))
    np.save("wide.npy", codes[:, 1:])
    np.save("other.npy", np.array([{}]))
    content = Path("in.npy").read_bytes()
    Path("cut.npy").write_bytes(content[:-1])
    Path("negative.npy").write_bytes(content.replace(b"(2, ", b"(-99, ").replace(b"  \n", b"\n"))
    Path("archive.npy").write_bytes(Path("in.npz").read_bytes())
    os.mkfifo("pipe.npy")
    for name, says in (
        ("long.npy", "divide it"),
        ("wide.npy", "has shape [2, "),
        ("cut.npy", "not a readable .npy"),
        ("other.npy", "not a readable .npy"),
        ("negative.npy", "not a readable .npy"),
        ("archive.npy", "not a readable .npy"),
        ("pipe.npy", "is not a file; expected an .npy"),
        ("none.npy", "is missing"),
    ):
        code, error = codec("decode", name, "o.wav")
        assert code == 2 and f"{name}: " in error and says in error


def without(name: str) -> Callable[[Stream], Stream]:
    def change(stream: Stream) -> Stream:
        del stream.signatures[name]
        return stream

    return change


@pytest.mark.parametrize("other", ["custom_voice", "voxtral_tts"])
def test_a_model_without_an_encoder_says_so(
    codec: Callable[..., tuple[int, str]], engines: Engines, other: str
) -> None:
    """Before the recording is read, which does not exist."""
    task = ToyVoxtral() if other == "voxtral_tts" else qwen_task(engines, without("speech_encoder"))
    code, error = codec("encode", "none.wav", "out.npz", task=task)
    assert code == 2 and "this model has no encoder of recordings" in error
    assert ("Base model" in error) == (other == "custom_voice")
    assert not Path("out.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("encode", "none.wav", "out.npz"), "none.wav: no such file"),
        (
            ("encode", "long.wav", "out.npz"),
            "long.wav: longer than 30 s, which is all that the encoder takes",
        ),
        (("encode", "in.wav", "out.codes"), "out.codes: expected a name that ends in .npz"),
        (("encode", "in.wav", "missing/out.npz"), "missing does not exist"),
        (("decode", "none.npz", "out.wav"), "none.npz: is missing"),
        (("decode", "in.wav", "out.wav"), "in.wav: not a readable .npz"),
        (("decode", "in.npz", "out.txt"), "cannot write .txt"),
        (("recode", "in.wav", "out.npz"), "invalid choice: 'recode'"),
    ],
)
def test_a_wrong_use_is_one_line_and_writes_nothing(
    codec: Callable[..., tuple[int, str]], arguments: tuple[str, str, str], says: str
) -> None:
    recorded("in.wav")
    if arguments[1] == "long.wav":
        recorded("long.wav", 8000, seconds=30.1)
    for name in ("out.npz", "out.wav"):
        Path(name).write_bytes(BEFORE)
    before = sorted(Path().iterdir())
    code, error = codec(*arguments)
    assert code == 2 and says in error
    assert sorted(Path().iterdir()) == before
    assert Path("out.npz").read_bytes() == Path("out.wav").read_bytes() == BEFORE


def test_a_recording_of_30_s_is_encoded(codec: Callable[..., tuple[int, str]]) -> None:
    recorded("in.wav", 8000, seconds=30)
    assert codec("encode", "in.wav", "out.npz")[0] == 0
    assert len(read("out.npz")["codes"]) == 375


CODES = np.arange(12).reshape(4, 3) % 5
SIZES = (9, 5, 5)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"codes": CODES}, "array sample_rate is missing; expected codes, sample_rate"),
        ({"sample_rate": RATE}, "array codes is missing"),
        ({"codes": CODES, "sample_rate": 16_000}, "codes for 16000 Hz, the model has 24000 Hz"),
        ({"codes": CODES, "sample_rate": -1}, "array sample_rate has values from -1"),
        ({"codes": CODES, "sample_rate": [RATE]}, "array sample_rate has shape"),
        (
            {"codes": CODES.astype(np.float32), "sample_rate": RATE},
            "array codes is float32, expected integer",
        ),
        ({"codes": CODES[:, :2], "sample_rate": RATE}, r"array codes has shape \[4, 2\], expected .*3"),
        ({"codes": CODES[None], "sample_rate": RATE}, r"array codes has shape \[1, 4, 3\]"),
        ({"codes": CODES[:0], "sample_rate": RATE}, "array codes has no frames; expected at least one"),
        ({"codes": CODES - 1, "sample_rate": RATE}, "values from -1"),
        (
            {"codes": CODES + np.array([0, 1, 0]), "sample_rate": RATE},
            r"codes\[..., 1\] .* to 5, expected 0 to 4",
        ),
        ({"codes": CODES + 2**62, "sample_rate": RATE}, "expected 0 to 8"),
        ({"codes": np.array([[None] * 3]), "sample_rate": RATE}, "array codes is object"),
        (
            {"codes": np.zeros((MAX_CODE_FRAMES + 1, 3), np.uint8), "sample_rate": RATE},
            f"array codes has {MAX_CODE_FRAMES + 1} frames, expected at most {MAX_CODE_FRAMES}",
        ),
    ],
)
def test_a_wrong_file_of_codes_is_refused(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    np.savez_compressed(tmp_path / "in.npz", allow_pickle=True, **arrays)
    with pytest.raises(UsageError, match=says) as caught:
        read_codes(tmp_path / "in.npz", SIZES, RATE)
    assert str(caught.value).startswith(str(tmp_path / "in.npz"))


def test_an_hour_of_codes_is_accepted() -> None:
    assert check_codes(np.zeros((MAX_CODE_FRAMES, 3), np.uint8), SIZES).dtype == np.int64


@pytest.mark.parametrize("family", ["qwen3_tts", "voxtral_tts"])
def test_decode_checks_codes_in_memory(engines: Engines, family: str) -> None:
    task = qwen_task(engines) if family == "qwen3_tts" else ToyVoxtral()
    sizes = task.code_sizes()
    highest = np.array([sizes]) - 1
    assert len(task.decode(highest)) == task.samples_per_frame
    assert len(task.decode(highest.tolist())) == task.samples_per_frame
    for codes, says in (
        (highest + 1, "expected 0 to"),
        (highest[:, 1:], "codes has shape"),
        (highest[:0], "codes has no frames"),
        (highest.astype(float), "codes is float64"),
    ):
        with pytest.raises(UsageError, match=says):
            task.decode(codes)


def test_voxtral_decodes_codes(codec: Callable[..., tuple[int, str]]) -> None:
    """Its calls take three frames, so these seven are decoded in three calls."""
    task = ToyVoxtral()
    codes = np.random.default_rng(0).integers(2, 14, (7, CONSTANTS.n_codebooks))
    write_codes(Path("in.npz"), codes, CONSTANTS.sample_rate)
    assert codec("decode", "in.npz", "out.pcm", task=task)[0] == 0
    written = Path("out.pcm").read_bytes()
    stream, expected = task.engine.stream(), []
    for position, frame in enumerate(codes):
        inputs = {"codes": frame[None, None], "position": np.array([position])}
        expected.append(stream.run("codec_step", inputs)["audio"][0])
    assert written == pcm16(np.concatenate(expected)) and len(written) == 7 * FRAME * 2


@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnx", "executorch", "coreml", "coreai"])
def test_the_commands_on_an_exported_bundle(
    qwen_bundles: Path,
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = str(qwen_bundles / target)
    recorded("in.wav")
    for arguments in (("encode", "in.wav", "codes.npz"), ("decode", "codes.npz", "out.wav")):
        capsys.readouterr()
        assert voxport(["codec", *arguments, "--bundle", bundle, "--threads", "1"]) == 0
        assert capsys.readouterr().out == f"{arguments[2]}\n"
    assert soundfile.info("out.wav").frames == 1920 * len(read("codes.npz")["codes"])
    np.savez("bad.npz", codes=np.full((1, 2), 5), sample_rate=RATE)
    assert voxport(["codec", "decode", "bad.npz", "bad.wav", "--bundle", bundle]) == 2
    assert not Path("bad.wav").exists()
