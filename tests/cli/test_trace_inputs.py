"""Inputs of a trace: what is wrong with a file is found before its arrays take memory."""

import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy

from voxport.bundle.bounds import MAX_TRACE_BYTES
from voxport.bundle.errors import UsageError
from voxport.runtime.trace import ArraySpec, read_inputs

SPECS = {
    "ids": ArraySpec((None,), limits=(100,)),
    "noise": ArraySpec(("frames", 2)),
    "codes": ArraySpec(("frames", 3), limits=(9,), is_optional=True),
}
IDS, NOISE = np.arange(4), np.ones((5, 2), np.float32)
PEAK_BYTES = 2**24  # of a refused file; far below MAX_TRACE_BYTES


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    """An `.npy` that ends behind its header."""
    return b"\x93NUMPY\x01\x00" + _sized(
        f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}\n"
    )


def _sized(text: str) -> bytes:
    return len(text).to_bytes(2, "little") + text.encode()


def written(folder: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes | np.ndarray) -> Path:
    path = folder / "in.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in ({"ids": IDS, "noise": NOISE} | members).items():
            with archive.open(f"{name}.npy", "w") as file:
                if isinstance(content, np.ndarray):
                    npy.write_array(file, content)
                else:
                    file.write(content)
    return path


def test_arrays_are_read_as_float32_and_int64(tmp_path: Path) -> None:
    inputs = read_inputs(written(tmp_path, ids=IDS.astype(">u2"), noise=NOISE.astype(np.float64)), SPECS)
    assert {name: array.dtype for name, array in inputs.items()} == {"ids": np.int64, "noise": np.float32}
    np.testing.assert_array_equal(inputs["ids"], IDS)
    np.testing.assert_array_equal(inputs["noise"], NOISE)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"noise": header((10**10, 2))}, r"its arrays have 80000000032 bytes, expected at most 268435456"),
        ({"noise": header((MAX_TRACE_BYTES // 8, 2))}, "its arrays have 268435488 bytes"),
        ({"noise": header((-1, 2))}, r"array noise has shape \[-1, 2\]"),
        ({"noise": header((5, 2, 10**9))}, r"array noise has shape \[5, 2, 1000000000\]"),
        ({"noise": header((5, 2))}, "not a readable .npz"),
        ({"noise": header((5, 2)) + bytes(2**28)}, None),
        ({"noise": header((5, 2), "|O") + b"cos\nsystem\n."}, "array noise is object, expected floating"),
        ({"noise": header((5, 2), "<m8[s]")}, "array noise is timedelta64"),
        ({"ids": header((5,), "<m8[s]")}, r"array ids is timedelta64\[s\], expected integer"),
        ({"ids": header((5,), "<f4")}, "array ids is float32, expected integer"),
        ({"noise": NOISE * np.float64(1e300)}, "array noise holds values that are not finite in float32"),
        ({"ids": b"\x93NUMPY\x01\x00" + _sized("(" * 5000)}, "not a readable .npz"),
        ({"ids": b"\x93NUMPY\x01\x00" + _sized("{[]: 1}")}, "not a readable .npz"),
        ({"ids": b"text"}, "not a readable .npz"),
        ({"codes": np.zeros((4, 3), int)}, "array codes has 4 frames, noise has 5 frames"),
    ],
)
def test_a_hostile_file_is_refused_before_memory_is_taken(
    tmp_path: Path, members: dict[str, Any], message: str | None
) -> None:
    path = written(tmp_path, **members)
    tracemalloc.start()
    try:
        if message:
            with pytest.raises(UsageError, match=message):
                read_inputs(path, SPECS)
        else:  # what follows the array is never unpacked
            read_inputs(path, SPECS)
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES
    finally:
        tracemalloc.stop()


def test_an_unknown_array_is_named_and_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, other=header((10**10, 2)))
    assert read_inputs(path, SPECS).keys() == {"ids", "noise"}
    assert "not read: other; expected ids, noise, optionally codes" in caplog.text


def test_samples_and_text_keep_their_types(tmp_path: Path) -> None:
    specs = {"pcm": ArraySpec((None,), kind="pcm"), "request": ArraySpec((), kind="text")} | SPECS
    path = written(tmp_path, pcm=np.ones(3, np.int16), request=np.array("say"))
    inputs = read_inputs(path, specs)
    assert inputs["pcm"].dtype == np.int16 and str(inputs["request"]) == "say"
    with pytest.raises(UsageError, match="array pcm is int32, expected pcm"):
        read_inputs(written(tmp_path, pcm=np.ones(3, np.int32), request=np.array("say")), specs)
    with pytest.raises(UsageError, match="array request is float64, expected text"):
        read_inputs(written(tmp_path, pcm=np.ones(3, np.int16), request=np.ones(())), specs)


def test_compressions_that_unpack_without_a_bound_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, zipfile.ZIP_BZIP2)
    with pytest.raises(UsageError, match=r"not a readable .npz of arrays \(compression 12 of 'ids.npy'\)"):
        read_inputs(path, SPECS)


def test_what_is_no_npz_is_refused(tmp_path: Path) -> None:
    pipe, text, large = (tmp_path / name for name in ("pipe", "text", "large"))
    os.mkfifo(pipe)
    text.write_text("no zip")
    with large.open("wb") as file:
        file.truncate(MAX_TRACE_BYTES + 1)
    for path, message in {
        pipe: "is not a file",
        tmp_path: "is not a file",
        tmp_path / "missing": "is missing",
        text: "File is not a zip file",
        large: "268435457 bytes, expected at most 268435456",
    }.items():
        with pytest.raises(UsageError, match=message):
            read_inputs(path, SPECS)
