"""Voices that other programs wrote: the `.pt` file of the official demo, and bare vectors."""

import collections
import math
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from voxport.bundle.bounds import MAX_VOICE_BYTES
from voxport.bundle.errors import UsageError, first_line

STORAGES: dict[str, Any] = {  # class names of torch, and the type of their values in NumPy
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype("<u2"),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
}
FORMATS = (".pt", ".npy", ".safetensors")


@dataclass(frozen=True)
class ForeignVoice:
    """`vector` float32 [dim]; for speech that continues a recording its codes int64 [T, K] and transcript."""

    vector: np.ndarray
    codes: np.ndarray | None = None
    transcript: str | None = None


def read_foreign_voice(path: Path) -> ForeignVoice:
    """Raises UsageError that names what is wrong. No code of the file runs."""
    if path.suffix not in FORMATS:
        raise UsageError(f"{path}: expected a voice in one of {', '.join(FORMATS)}")
    if not path.is_file():  # opening a pipe would wait for ever
        raise UsageError(f"{path}: is missing or is not a file")
    if (size := path.stat().st_size) > MAX_VOICE_BYTES:
        raise UsageError(f"{path}: {size} bytes, expected at most {MAX_VOICE_BYTES} for a voice")
    try:
        if path.suffix == ".pt":
            return _from_demo(path, _unpickled(path))
        found = _vector(path)
    except UsageError:
        raise
    except Exception as error:  # pickle, zipfile and NumPy raise a dozen types
        raise UsageError(f"{path}: not a readable {path.suffix} file ({first_line(error)})") from None
    return ForeignVoice(_checked(path, found))


def _vector(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        found: np.ndarray = np.load(path, allow_pickle=False)
        return found
    with safe_open(path, framework="numpy") as file:
        names = list(file.keys())
        if len(names) != 1:
            raise UsageError(f"{path}: {len(names)} tensors, expected one vector")
        try:
            return np.asarray(file.get_tensor(names[0]))
        except (TypeError, SafetensorError):  # NumPy has no bfloat16
            raise UsageError(f"{path}: tensor {names[0]}: expected float32 or float16") from None


def _checked(path: Path, array: Any) -> np.ndarray:
    """As float32 [dim]."""
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        raise UsageError(f"{path}: its vector is not an array of floats")
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 1 or not np.isfinite(array).all():
        raise UsageError(f"{path}: an array of shape {list(array.shape)}, expected a finite vector [dim]")
    found: np.ndarray = array.astype(np.float32)
    return found


def _from_demo(path: Path, content: Any) -> ForeignVoice:
    """{"items": [{ref_code, ref_spk_embedding, x_vector_only_mode, icl_mode, ref_text}]}"""
    items = content.get("items") if isinstance(content, dict) else None
    if not isinstance(items, list) or not items or not isinstance(items[0], dict):
        raise UsageError(f'{path}: expected a voice of the official demo, {{"items": [...]}}')
    if len(items) > 1:
        raise UsageError(f"{path}: {len(items)} voices, expected one")
    item = items[0]
    vector, codes, text = (item.get(name) for name in ("ref_spk_embedding", "ref_code", "ref_text"))
    missing = [name for name, value in (("ref_code", codes), ("ref_text", text)) if _is_blank(value)]
    if item.get("x_vector_only_mode") or (len(missing) == 2 and not item.get("icl_mode")):
        return ForeignVoice(_checked(path, vector))
    if missing:
        raise UsageError(
            f"{path}: no {' and no '.join(missing)}; expected codes of a recording and its transcript, or "
            "x_vector_only_mode for the vector alone"
        )
    if not isinstance(codes, np.ndarray) or codes.dtype.kind != "i" or codes.ndim != 2 or not len(codes):
        raise UsageError(f"{path}: ref_code: expected integers [frames, code books]")
    if not isinstance(text, str):
        raise UsageError(f"{path}: ref_text: expected a text")
    return ForeignVoice(_checked(path, vector), codes.astype(np.int64), text)


def _is_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _unpickled(path: Path) -> Any:
    """The content of a file of torch.save; tensors are arrays."""
    with zipfile.ZipFile(path) as archive:
        names = {entry.filename: entry for entry in archive.infolist()}
        if sum(entry.file_size for entry in names.values()) > MAX_VOICE_BYTES:
            raise UsageError(f"{path}: unpacks to more than {MAX_VOICE_BYTES} bytes")
        (main,) = (name for name in names if name.endswith("data.pkl"))
        with archive.open(main) as file:
            return _Unpickler(file, path, archive, main.removesuffix("data.pkl")).load()


class _Unpickler(pickle.Unpickler):
    """Reads plain values and tensors. A name of anything else in the file is refused."""

    def __init__(self, file: Any, path: Path, archive: zipfile.ZipFile, folder: str):
        super().__init__(file)
        self._path, self._archive, self._folder = path, archive, folder

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "collections", "OrderedDict":
                return collections.OrderedDict
            case "torch._utils", "_rebuild_tensor_v2":
                return _rebuilt
            case "torch", storage if storage in STORAGES:
                return storage
        raise UsageError(
            f"{self._path}: names {module}.{name}, which is no part of a voice; nothing of it was run"
        )

    def persistent_load(self, identifier: Any) -> np.ndarray:
        kind, storage, key, _, count = identifier
        content = self._archive.read(f"{self._folder}data/{key}")
        if kind != "storage" or storage not in STORAGES or not isinstance(count, int):
            raise ValueError("an unknown storage")
        values: np.ndarray = np.frombuffer(content, STORAGES[storage])
        if storage == "BFloat16Storage":
            values = (values.astype("<u4") << 16).view("<f4")
        return values[:count]


def _rebuilt(
    storage: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> np.ndarray:
    """A contiguous tensor as an array."""
    count = math.prod(shape)
    expected = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if any(a != b for a, b, size in zip(strides, expected, shape, strict=True) if size > 1):
        raise ValueError("a tensor that is not contiguous")
    if offset < 0 or offset + count > len(storage):
        raise ValueError("a tensor outside its storage")
    return storage[offset : offset + count].reshape(shape).copy()
