"""Speech from text with a Voxtral-TTS bundle: prompt, prefill, frame loop, codec. Works on any engine's streams."""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runtime.bundle import Manifest, first_fault
from runtime.engines.base import Arrays, Stream
from runtime.errors import IntegrityError, UsageError
from runtime.prefix import PrefixCache

FAMILY = "voxtral_tts"
EMPTY_AUDIO, END_AUDIO, FIRST_CODE = 0, 1, 2  # the first two rows of every code book are specials
log = logging.getLogger(__name__)
Count = Annotated[int, Field(gt=0, le=2**24)]
Id = Annotated[int, Field(ge=0, lt=2**31)]
CALLS = {  # component: its inputs, its outputs
    "embed_text": ({"ids"}, {"embeddings"}),
    "embed_codes": ({"codes"}, {"embeddings"}),
    "prefill": ({"embeddings", "position"}, {"hidden", "semantic_logits", "condition"}),
    "decode_step": ({"embeddings", "position"}, {"hidden", "semantic_logits", "condition"}),
    "acoustic_step": ({"x", "step", "condition"}, {"next_x", "velocity"}),
    "codec_step": ({"codes", "position"}, {"audio"}),
}


class Constants(BaseModel):
    """`constants` of the manifest, and of its `switches` those that the frame loop needs."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    sample_rate: Count
    samples_per_frame: Count
    dim: Count
    vocab_size: Count
    n_codebooks: Annotated[int, Field(ge=2, le=2**12)]
    semantic_codes: Count
    acoustic_levels: Annotated[int, Field(ge=2, le=2**16)]
    euler_steps: Count
    bos_id: Id
    audio_id: Id
    begin_audio_id: Id
    first_frame: Literal["audio_token", "prefill"]


def parse_constants(constants: dict[str, Any], switches: dict[str, str]) -> Constants:
    """Raises IntegrityError that names the constant."""
    try:
        return Constants.model_validate({**constants, "first_frame": switches.get("first_frame")})
    except ValidationError as error:
        raise IntegrityError(f"manifest.json: constants: {first_fault(error)}; export the bundle again") from None


def read_constants(manifest: Manifest) -> Constants:
    """Of a bundle of this family with all that the frame loop calls. Raises UsageError or IntegrityError."""
    if manifest.family != FAMILY:
        raise UsageError(f"manifest.json: a bundle of family {manifest.family!r}; this runtime speaks from {FAMILY} only")
    entries = {entry.name: entry for entry in manifest.components}
    for name, (inputs, outputs) in CALLS.items():
        if name not in entries:
            raise IntegrityError(f"manifest.json: components: {name} is missing; export the bundle again")
        for what, needed, found in (("input", inputs, entries[name].inputs), ("output", outputs, entries[name].outputs)):
            if needed - {tensor.name for tensor in found}:
                raise IntegrityError(f"manifest.json: component {name} has no {what} {min(needed - {t.name for t in found})}; export the bundle again")
    return parse_constants(manifest.constants, manifest.switches)


@dataclass(frozen=True)
class Outlook:
    """What the backbone gives for the next frame."""

    hidden: np.ndarray  # float32 [dim]
    semantic_logits: np.ndarray  # float32 [rows]
    condition: np.ndarray  # float32 [1, acoustic dim]


class Speaker:
    """One utterance on one stream."""

    def __init__(self, stream: Stream, constants: Constants):
        self.stream, self.constants = stream, constants
        self._position = 0
        self._decoded = 0

    def prefill(self, ids: np.ndarray, voice: np.ndarray) -> np.ndarray:
        """ids int64 [P], voice float32 [N, dim] in place of the N [AUDIO] ids -> hidden float32 [1, P, dim] of the prompt,
        or of the rest of one whose beginning is in the caches already.

        Raises UsageError when the prompt does not fit the cache or the voice the placeholders.
        """
        extra = [self.constants.audio_id] if self.constants.first_frame == "audio_token" else []
        # Frame 0 from [AUDIO] is the prompt with one more row: the same arithmetic as a step of its own.
        outputs = self._read(ids, voice, extra)
        self._keep(outputs)
        return outputs["hidden"][:, : len(ids)]

    def begin(self, ids: np.ndarray, voice: np.ndarray) -> None:
        """Reads the beginning of a prompt, which every utterance of a voice shares."""
        self._read(ids, voice, [])

    def resume(self, rows: Arrays, count: int) -> None:
        """The beginning of a prompt, from the `count` rows that it left in another stream's caches."""
        self.stream.load_rows(rows)
        self._position = count

    def _read(self, ids: np.ndarray, voice: np.ndarray, extra: list[int]) -> dict[str, np.ndarray]:
        places = ids == self.constants.audio_id
        if places.sum() != voice.shape[0]:
            raise UsageError(f"prompt: {places.sum()} [AUDIO] ids for a voice of {voice.shape[0]} rows; expected as many")
        rows = self._position + len(ids) + len(extra)
        if rows >= self.stream.cache_length:
            raise UsageError(
                f"text: its prompt of {rows} rows leaves no room in a cache of {self.stream.cache_length};"
                " shorten the text or export with a larger --cache-length"
            )
        embeddings = self.stream.run("embed_text", {"ids": np.array([[*ids, *extra]], dtype=np.int64)})["embeddings"].copy()
        embeddings[0, : len(ids)][places] = voice
        outputs = self.stream.run("prefill", {"embeddings": embeddings, "position": np.array([self._position])})
        self._position = rows
        return outputs

    def frame(self, noise: np.ndarray, outlook: Outlook | None = None) -> np.ndarray:
        """noise float32 [1, K - 1] -> codes int64 [1, K] from an outlook, by default the last; the first may be END_AUDIO."""
        outlook = outlook or self.outlook
        return np.concatenate(([[self._semantic_code(outlook)]], self._acoustic_codes(noise, outlook)), axis=1)

    def embed(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [1, K] of a frame -> float32 [1, 1, dim], the next input of the backbone."""
        return self.stream.run("embed_codes", {"codes": codes})["embeddings"]

    def step(self, embeddings: np.ndarray) -> None:
        """Feeds a frame's embedding back: the next outlook."""
        self._keep(self.stream.run("decode_step", {"embeddings": embeddings, "position": np.array([self._position])}))
        self._position += 1

    @property
    def has_room(self) -> bool:
        """Whether the cache holds another step."""
        return self._position < self.stream.cache_length

    def velocity(self, x: np.ndarray, step: int, condition: np.ndarray) -> np.ndarray:
        """x float32 [1, K - 1], condition [1, acoustic dim] -> float32 [2, K - 1]: guided and unguided velocity at a step."""
        return self.stream.run("acoustic_step", {"x": x, "step": np.array([step]), "condition": condition})["velocity"]

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [T, K] of the next frames -> float32 [T · samples_per_frame]."""
        most = self.stream.components["codec_step"].dims.get("T", (1, 1))[1]
        pieces = []
        for start in range(0, len(codes), most):
            part = codes[None, start : start + most]
            pieces.append(self.stream.run("codec_step", {"codes": part, "position": np.array([self._decoded])})["audio"][0])
            self._decoded += part.shape[1]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)

    def _keep(self, outputs: dict[str, np.ndarray]) -> None:
        self.outlook = Outlook(outputs["hidden"][0, -1], outputs["semantic_logits"][0], outputs["condition"])

    def _semantic_code(self, outlook: Outlook) -> int:
        speakable = outlook.semantic_logits[: FIRST_CODE + self.constants.semantic_codes].copy()  # rows beyond are padding
        speakable[EMPTY_AUDIO] = -np.inf
        return int(speakable.argmax())

    def _acoustic_codes(self, noise: np.ndarray, outlook: Outlook) -> np.ndarray:
        x = noise
        for step in range(self.constants.euler_steps):
            x = self.stream.run("acoustic_step", {"x": x, "step": np.array([step]), "condition": outlook.condition})["next_x"]
        return quantize_levels(x, self.constants.acoustic_levels) + FIRST_CODE


def quantize_levels(x: np.ndarray, levels: int) -> np.ndarray:
    """round((clamp(x, -1, 1) + 1) / 2 · (levels - 1)), half to even: int64 in 0 … levels - 1."""
    return np.round((np.clip(x, -1, 1) + 1) / 2 * (levels - 1)).astype(np.int64)


def speak(
    stream: Stream,
    constants: Constants,
    ids: np.ndarray,
    voice: np.ndarray,
    seed: int,
    max_frames: int,
    chunk_frames: int,
    kept: PrefixCache,
) -> Generator[np.ndarray, None, bool]:
    """Yields float32 samples, `chunk_frames` frames at a time; returns whether the model itself ended the speech.

    The seed's noise is the same on every target.
    """
    speaker = Speaker(stream, constants)
    generator = np.random.default_rng(seed)
    text = 1 + int(np.flatnonzero(ids == constants.audio_id)[-1]) + 1  # behind the voice and the marker that follows it
    rows = kept.load(ids[:text], voice)
    if rows is None:
        speaker.begin(ids[:text], voice)
        kept.keep(ids[:text], voice, stream.save_rows(text))
    else:
        speaker.resume(rows, text)
    speaker.prefill(ids[text:], voice[:0])
    waiting: list[np.ndarray] = []
    ended = False
    for count in range(max_frames):
        codes = speaker.frame(generator.standard_normal((1, constants.n_codebooks - 1), dtype=np.float32))
        if codes[0, 0] == END_AUDIO:
            ended = True
            break
        waiting.append(codes[0])
        if len(waiting) == chunk_frames:
            yield speaker.decode(np.stack(waiting))
            waiting = []
        if not speaker.has_room:
            log.warning("stopped after %d frames: the cache of %d rows is full, the sentence may be cut off", count + 1, stream.cache_length)
            break
        if count + 1 < max_frames:
            speaker.step(speaker.embed(codes))
    else:
        log.warning(
            "stopped at the limit of %d frames (%.1f s): the sentence may be cut off",
            max_frames,
            max_frames * constants.samples_per_frame / constants.sample_rate,
        )
    if waiting:
        yield speaker.decode(np.stack(waiting))
    return ended
