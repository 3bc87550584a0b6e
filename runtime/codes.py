"""Codes of speech: what a codec can decode, and the file that holds them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from voxport.bundle.bounds import MAX_CODE_FRAMES, MAX_RATE
from voxport.bundle.errors import UsageError, first_line
from voxport.runtime.trace import ArraySpec, check_array, read_inputs, write_outputs

CODES, SAMPLE_RATE = "codes", "sample_rate"  # arrays of a file


def check_codes(codes: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """codes [T, K] of any integer type -> int64 [T, K]. `sizes` are the numbers of values of each code.

    Raises UsageError.
    """
    return _checked_length(CODES, check_array(CODES, np.asarray(codes), _codes_spec(sizes)))


def read_codes(path: Path, sizes: Sequence[int], rate: int) -> np.ndarray:
    """The codes int64 [T, K] of an `.npz`, for a model of samples at `rate` Hz, or of an `.npy`.

    Raises UsageError.
    """
    if path.suffix.lower() == ".npy":
        if not path.is_file():  # opening a pipe would wait for ever
            raise UsageError(f"{path}: is missing or is not a file; expected an .npy of codes")
        try:
            array = open_memmap(path, mode="r")
        except Exception as error:  # NumPy raises several types
            raise UsageError(f"{path}: not a readable .npy of codes ({first_line(error)})") from None
        what = f"{path}: array {CODES}"
        return _checked_length(what, check_array(what, array, _codes_spec(sizes)))
    specs = {CODES: _codes_spec(sizes), SAMPLE_RATE: ArraySpec((), (MAX_RATE + 1,))}
    arrays = read_inputs(path, specs)
    if (found := int(arrays[SAMPLE_RATE])) != rate:
        raise UsageError(
            f"{path}: codes for {found} Hz, the model has {rate} Hz; use the model that made them"
        )
    return _checked_length(f"{path}: array {CODES}", arrays[CODES])


def write_codes(path: Path, codes: np.ndarray, rate: int) -> None:
    """Writes codes int64 [T, K] for samples at `rate` Hz. Raises VoxportError."""
    write_outputs(path, {CODES: codes, SAMPLE_RATE: np.array(rate)})


def _codes_spec(sizes: Sequence[int]) -> ArraySpec:
    return ArraySpec(("frames", len(sizes)), tuple(sizes))


def _checked_length(what: str, codes: np.ndarray) -> np.ndarray:
    if len(codes) > MAX_CODE_FRAMES:
        raise UsageError(f"{what} has {len(codes)} frames, expected at most {MAX_CODE_FRAMES}; divide it")
    return codes
