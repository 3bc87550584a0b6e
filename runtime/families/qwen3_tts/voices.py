"""Voices of a bundle, voice files of the user, and voices that other programs wrote: the .pt file of the
official demo, and bare vectors.
"""

import collections
import hashlib
import json
import math
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from voxport.bundle.bounds import MAX_VOICE_BYTES
from voxport.bundle.constants.qwen3_tts import QwenConstants
from voxport.bundle.errors import IntegrityError, UsageError, first_line
from voxport.bundle.manifest import Bundle
from voxport.bundle.names import find_name
from voxport.bundle.qwen_tokenizer import VOCABULARY
from voxport.bundle.user_cache import user_data
from voxport.runtime.audio.files import SOUNDS
from voxport.runtime.families.qwen3_tts.prompt import Reference, Voice
from voxport.runtime.text_to_speech import CHECKPOINT

EMBEDDING, CODES, TEXT_IDS = "speaker_embedding", "codes", "text_ids"
DTYPES = {EMBEDDING: "float32", CODES: "int64", TEXT_IDS: "int64"}
MAX_TEXT_IDS, MAX_CODES = 4096, 4096
STORAGES: dict[str, Any] = {  # class names of torch, and the type of their values in NumPy
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype("<u2"),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
}
FORMATS = (".pt", ".npy", ".safetensors")
LANGUAGES = {  # published preset speakers; the others speak English best
    "dylan": "zh",
    "eric": "zh",
    "ono_anna": "ja",
    "serena": "zh",
    "sohee": "ko",
    "uncle_fu": "zh",
    "vivian": "zh",
}


def choose_voice(bundle: Bundle, constants: QwenConstants, name: str | None) -> Voice:
    """A voice by name or file. Raises UsageError that lists the voices."""
    if name and name.lower() in constants.speakers:
        return Voice(name.lower())
    paths = voice_paths(bundle)
    if name is None and constants.kind != "base":
        speakers = sorted(constants.speakers)
        return Voice(speakers[0] if speakers else None)
    name = find_name(name, paths) if name else next(iter(paths), None)
    if name is None:
        raise UsageError(
            f"voice: {bundle.folder} has none; make one with "
            "`voxport voice add NAME RECORDING --bundle BUNDLE`, or give a voice file",
            field="voice",
        )
    path = Path(name) if Path(name).suffix == ".safetensors" else paths.get(name)
    if path:
        try:
            return read_voice(path, constants, model_digest(bundle))
        except IntegrityError as error:
            raise UsageError(f"voice {error}", field="voice") from None
    if constants.kind == "base" and Path(name).suffix.lower() in SOUNDS:
        raise UsageError(
            f"voice {name}: a recording cannot be used as a voice; make a voice of it with "
            f"`voxport voice add NAME {name} --bundle BUNDLE`",
            field="voice",
        )
    listed = ", ".join([*sorted(constants.speakers), *paths]) or "none in this bundle"
    raise UsageError(f"voice {name}: unknown voice; there are {listed}", field="voice")


def language_of_voice(voice: str | None) -> str:
    """ISO 639 code of the language that a preset speaker speaks best."""
    return LANGUAGES.get((voice or "").lower(), "en")


def count_rows(bundle: Bundle, constants: QwenConstants) -> dict[str, int]:
    """Prompt rows of each voice: one for the speaker, others for its recording. Raises IntegrityError."""
    found = dict.fromkeys(sorted(constants.speakers), 1)
    for name, path in voice_paths(bundle).items():
        reference = read_voice(path, constants, model_digest(bundle)).reference
        found[name] = 1 + (len(reference.codes) if reference else 0)
    return found


def bundle_voices(bundle: Bundle, constants: QwenConstants) -> list[str]:
    """Names of the preset speakers, and of the voice files of the bundle."""
    return [*sorted(constants.speakers), *bundle.manifest.voices]


def model_digest(bundle: Bundle) -> str:
    """Names the weights and the vocabulary of a bundle's checkpoint, whatever its target and recipe. Other
    files, such as the defaults of sampling, do not change what a voice is.
    """
    files = {
        name: entry.sha256
        for name, entry in bundle.job.source.files.items()
        if name.endswith(".safetensors") or name in VOCABULARY
    }
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]


def user_voices(bundle: Bundle) -> Path:
    """The folder of the user's voices for the checkpoint of a bundle."""
    return user_data() / "voices" / model_digest(bundle)


def user_voice_files(bundle: Bundle | None = None) -> list[Path]:
    """Files of the user's voices for the checkpoint of a bundle, or for all."""
    if bundle is None:
        return sorted(user_data().glob("voices/*/*.safetensors"))
    return sorted(user_voices(bundle).glob("*.safetensors"))


def voice_paths(bundle: Bundle) -> dict[str, Path]:
    """Voice files of the bundle and of the user by name."""
    own = {path.stem: path for path in user_voice_files(bundle)}
    return own | {name: bundle.folder / path for name, path in bundle.manifest.voices.items()}


def voice_content(
    voice: Voice, digest: str, source: bytes = b"", transcript: str | None = None, **more: str
) -> bytes:
    """A voice as a safetensors file. `digest`: see `model_digest`; `source` is what the voice was made from;
    `more` are further metadata.

    The file has hashes of source and transcript, and neither of them.
    """
    assert isinstance(voice.speaker, np.ndarray)
    arrays = {EMBEDDING: np.ascontiguousarray(voice.speaker, np.float32)}
    if voice.reference:
        arrays |= {
            CODES: np.ascontiguousarray(voice.reference.codes, np.int64),
            TEXT_IDS: np.ascontiguousarray(voice.reference.text, np.int64),
        }
    texts = {"source_sha256": source, "transcript_sha256": transcript.encode() if transcript else b""}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in texts.items() if content}
    return save(arrays, metadata={CHECKPOINT: digest, **more, **hashes})


def read_voice(path: Path, constants: QwenConstants, digest: str) -> Voice:
    """A voice file: `speaker_embedding` float32 [dim], and `codes` int64 [T, K] with `text_ids` int64 [n] if
    the speech continues a recording. Its metadata may name the model by its `digest`.

    Raises IntegrityError on any other file.
    """
    if not path.is_file():  # opening a pipe would wait for ever
        raise IntegrityError(f"{path}: not a file; give a voice FILE.safetensors with key {EMBEDDING!r}")
    if (size := path.stat().st_size) > MAX_VOICE_BYTES:
        raise IntegrityError(f"{path}: {size} bytes, expected at most {MAX_VOICE_BYTES} for a voice")
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
            made_with = (file.metadata() or {}).get(CHECKPOINT, digest)
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path}: not a readable safetensors file ({error})") from None
    found = {name: array.dtype.name for name, array in arrays.items()}
    if found != DTYPES and found != {EMBEDDING: DTYPES[EMBEDDING]}:
        raise IntegrityError(
            f"{path}: has {found or 'nothing'}, expected {DTYPES} of a voice; make the voice again"
        )
    if made_with != digest:
        raise IntegrityError(f"{path}: made with another checkpoint; make the voice again with this model")
    reference = Reference(arrays[TEXT_IDS], arrays[CODES]) if CODES in arrays else None
    voice = Voice(arrays[EMBEDDING], reference)
    try:
        check_voice(voice, constants)
    except IntegrityError as error:
        raise IntegrityError(f"{path}: {error}") from None
    return voice


def check_voice(voice: Voice, constants: QwenConstants) -> None:
    """Raises IntegrityError on a voice that is not one of this model."""
    vector, reference = np.asarray(voice.speaker), voice.reference
    if vector.shape != (constants.dim,):
        raise IntegrityError(
            f"a vector of shape {list(vector.shape)}, the model has [{constants.dim}]; "
            "make the voice with this model"
        )
    if not np.isfinite(vector).all():
        raise IntegrityError(f"key {EMBEDDING!r} holds values that are not finite")
    if reference is None:
        return
    if reference.codes.shape[1:] != (constants.n_codebooks,) or not 1 <= len(reference.codes) <= MAX_CODES:
        raise IntegrityError(
            f"codes of shape {list(reference.codes.shape)}, expected [T, {constants.n_codebooks}], "
            f"T up to {MAX_CODES}"
        )
    if reference.text.ndim != 1 or not 1 <= len(reference.text) <= MAX_TEXT_IDS:
        raise IntegrityError(
            f"a transcript of {reference.text.size} tokens, expected 1 to {MAX_TEXT_IDS}; give only what is "
            "spoken in the recording"
        )
    sizes = np.array(constants.code_sizes)
    for name, values, limit in (
        (CODES, reference.codes, sizes),
        (TEXT_IDS, reference.text, constants.text_vocab_size),
    ):
        if not ((values >= 0) & (values < limit)).all():
            raise IntegrityError(f"key {name!r} holds ids that the model does not have")


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
