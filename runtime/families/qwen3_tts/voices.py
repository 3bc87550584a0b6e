"""Voices of a bundle, and voice files of the user."""

import hashlib
import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from voxport.bundle.bounds import MAX_VOICE_BYTES
from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.manifest import Bundle
from voxport.bundle.names import find_name
from voxport.bundle.qwen_tokenizer import VOCABULARY
from voxport.bundle.user_cache import user_data
from voxport.runtime.audio.files import SOUNDS
from voxport.runtime.families.qwen3_tts.builder import Voice
from voxport.runtime.families.qwen3_tts.constants import Constants
from voxport.runtime.families.qwen3_tts.prompt import Reference

MODEL = "model"  # key of the metadata
EMBEDDING, CODES, TEXT_IDS = "speaker_embedding", "codes", "text_ids"
DTYPES = {EMBEDDING: "float32", CODES: "int64", TEXT_IDS: "int64"}
MAX_TEXT_IDS, MAX_CODES = 4096, 4096
LANGUAGES = {  # published preset speakers; the others speak English best
    "dylan": "zh",
    "eric": "zh",
    "ono_anna": "ja",
    "serena": "zh",
    "sohee": "ko",
    "uncle_fu": "zh",
    "vivian": "zh",
}


def choose_voice(bundle: Bundle, constants: Constants, name: str | None) -> Voice:
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


def count_rows(bundle: Bundle, constants: Constants) -> dict[str, int]:
    """Prompt rows of each voice: one for the speaker, others for its recording. Raises IntegrityError."""
    found = dict.fromkeys(sorted(constants.speakers), 1)
    for name, path in voice_paths(bundle).items():
        reference = read_voice(path, constants, model_digest(bundle)).reference
        found[name] = 1 + (len(reference.codes) if reference else 0)
    return found


def bundle_voices(bundle: Bundle, constants: Constants) -> list[str]:
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


def voice_paths(bundle: Bundle) -> dict[str, Path]:
    """Voice files of the bundle and of the user by name."""
    own = {path.stem: path for path in sorted(user_voices(bundle).glob("*.safetensors"))}
    return own | {name: bundle.folder / path for name, path in bundle.manifest.voices.items()}


def voice_content(voice: Voice, digest: str, source: bytes = b"", transcript: str | None = None) -> bytes:
    """A voice as a safetensors file. `digest`: see `model_digest`; `source` is what the voice was made from.

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
    return save(arrays, metadata={MODEL: digest, **hashes})


def read_voice(path: Path, constants: Constants, digest: str) -> Voice:
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
            made_with = (file.metadata() or {}).get(MODEL, digest)
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


def check_voice(voice: Voice, constants: Constants) -> None:
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
