"""Speech from text with a Voxtral-TTS bundle: prompt, prefill, frame loop, codec. Works on any engine's streams."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
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

BATCHED = ("embed_codes", "decode_step", "acoustic_step")  # are called for several utterances at once where an engine can


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
        self.position = 0
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
        self.position = count

    def _read(self, ids: np.ndarray, voice: np.ndarray, extra: list[int]) -> dict[str, np.ndarray]:
        places = ids == self.constants.audio_id
        if places.sum() != voice.shape[0]:
            raise UsageError(f"prompt: {places.sum()} [AUDIO] ids for a voice of {voice.shape[0]} rows; expected as many")
        rows = self.position + len(ids) + len(extra)
        _check_room(rows, self.stream.cache_length)
        embeddings = self.stream.run("embed_text", {"ids": np.array([[*ids, *extra]], dtype=np.int64)})["embeddings"].copy()
        embeddings[0, : len(ids)][places] = voice
        outputs = self.stream.run("prefill", {"embeddings": embeddings, "position": np.array([self.position])})
        self.position = rows
        return outputs

    def frame(self, noise: np.ndarray, outlook: Outlook | None = None) -> np.ndarray:
        """noise float32 [1, K - 1] -> codes int64 [1, K] from an outlook, by default the last; the first may be END_AUDIO."""
        outlook = outlook or self.outlook
        return np.concatenate(([[self.semantic_code(outlook)]], acoustic_codes(self.stream, self.constants, noise, outlook.condition)), axis=1)

    def embed(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [1, K] of a frame -> float32 [1, 1, dim], the next input of the backbone."""
        return self.stream.run("embed_codes", {"codes": codes})["embeddings"]

    def step(self, embeddings: np.ndarray) -> None:
        """Feeds a frame's embedding back: the next outlook."""
        self.advance(self.stream.run("decode_step", {"embeddings": embeddings, "position": np.array([self.position])}))

    def advance(self, outputs: Arrays) -> None:
        """What `decode_step` gave for this utterance."""
        self._keep(outputs)
        self.position += 1

    @property
    def has_room(self) -> bool:
        """Whether the cache holds another step."""
        return self.position < self.stream.cache_length

    def velocity(self, x: np.ndarray, step: int, condition: np.ndarray) -> np.ndarray:
        """x float32 [1, K - 1], condition [1, acoustic dim] -> float32 [2, K - 1]: guided and unguided velocity at a step."""
        return self.stream.run("acoustic_step", {"x": x, "step": np.array([step]), "condition": condition})["velocity"][0]

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

    def semantic_code(self, outlook: Outlook | None = None) -> int:
        """The code of an outlook, by default the last; it may be END_AUDIO."""
        speakable = (outlook or self.outlook).semantic_logits[: FIRST_CODE + self.constants.semantic_codes].copy()  # rows beyond are padding
        speakable[EMPTY_AUDIO] = -np.inf
        return int(speakable.argmax())


class Choir:
    """Several utterances on one stream, a frame of each at a time: weights are read once for all of them.

    Each singer, of whom there is one at least, is a `Speaker` on `stream.alone(index)`; where there is None, nothing that is
    computed is kept.
    """

    def __init__(self, stream: Stream, constants: Constants):
        self.stream, self.constants = stream, constants
        self.singers: list[Speaker | None] = [None] * stream.count

    def frame(self, noise: np.ndarray) -> np.ndarray:
        """noise float32 [count, K - 1] -> codes int64 [count, K]."""
        someone = next(filter(None, self.singers))
        conditions = np.concatenate([(singer or someone).outlook.condition for singer in self.singers])
        semantic = [[singer.semantic_code() if singer else EMPTY_AUDIO] for singer in self.singers]
        return np.concatenate((semantic, acoustic_codes(self.stream, self.constants, noise, conditions)), axis=1)

    def step(self, codes: np.ndarray) -> None:
        """Feeds codes [count, K] back: the next outlook of each."""
        embeddings = self.stream.run("embed_codes", {"codes": codes})["embeddings"]
        positions = np.array([singer.position if singer else 0 for singer in self.singers])
        outputs = self.stream.run("decode_step", {"embeddings": embeddings, "position": positions})
        for index, singer in enumerate(self.singers):
            if singer:
                singer.advance({name: array[index : index + 1] for name, array in outputs.items()})


def acoustic_codes(stream: Stream, constants: Constants, noise: np.ndarray, condition: np.ndarray) -> np.ndarray:
    """noise float32 [B, K - 1], condition [B, acoustic dim] -> codes int64 [B, K - 1], in all Euler steps."""
    x = noise
    for step in range(constants.euler_steps):
        x = stream.run("acoustic_step", {"x": x, "step": np.full(len(x), step), "condition": condition})["next_x"]
    return quantize_levels(x, constants.acoustic_levels) + FIRST_CODE


def check_length(ids: int, constants: Constants, cache_length: int) -> None:
    """Of a whole prompt. Raises UsageError where no frame would have room behind it."""
    _check_room(ids + (constants.first_frame == "audio_token"), cache_length)


def _check_room(rows: int, cache_length: int) -> None:
    if rows >= cache_length:
        raise UsageError(
            f"text: its prompt of {rows} rows leaves no room in a cache of {cache_length}; shorten the text or export with a larger --cache-length"
        )


def quantize_levels(x: np.ndarray, levels: int) -> np.ndarray:
    """round((clamp(x, -1, 1) + 1) / 2 · (levels - 1)), half to even: int64 in 0 … levels - 1."""
    return np.round((np.clip(x, -1, 1) + 1) / 2 * (levels - 1)).astype(np.int64)


@dataclass(frozen=True)
class Script:
    """A text to be spoken: ids int64 [P], voice float32 [N, dim] for the N [AUDIO] ids; the seed's noise is the same on every target."""

    ids: np.ndarray
    voice: np.ndarray
    seed: int
    max_frames: int
    chunk_frames: int


class Utterance:
    """A script being spoken: its prompt is read, then frame after frame is asked for and told."""

    def __init__(self, stream: Stream, constants: Constants, script: Script, kept: PrefixCache):
        self.speaker, self._script, self._constants = Speaker(stream, constants), script, constants
        self._generator = np.random.default_rng(script.seed)
        self._waiting: list[np.ndarray] = []
        self._count = 0
        self.goes_on, self.ended = True, False  # ended: by the model itself
        ids, voice = script.ids, script.voice
        text = 1 + int(np.flatnonzero(ids == constants.audio_id)[-1]) + 1  # behind the voice and the marker that follows it
        rows = kept.load(ids[:text], voice)
        if rows is None:
            self.speaker.begin(ids[:text], voice)
            kept.keep(ids[:text], voice, stream.save_rows(text))
        else:
            self.speaker.resume(rows, text)
        self.speaker.prefill(ids[text:], voice[:0])

    def noise(self) -> np.ndarray:
        """Of the next frame: float32 [1, K - 1]."""
        return self._generator.standard_normal((1, self._constants.n_codebooks - 1), dtype=np.float32)

    def tell(self, codes: np.ndarray) -> Iterator[np.ndarray]:
        """Takes the codes [1, K] of a frame; yields samples where a chunk is full or the speech is over."""
        if codes[0, 0] == END_AUDIO:
            self.goes_on, self.ended = False, True
        else:
            self._waiting.append(codes[0])
            self._count += 1
        if self._waiting and (len(self._waiting) == self._script.chunk_frames or not self.goes_on):
            yield self._decoded()
        if self.goes_on and self._must_stop():
            self.goes_on = False
            if self._waiting:
                yield self._decoded()

    def _decoded(self) -> np.ndarray:
        codes, self._waiting = np.stack(self._waiting), []
        return self.speaker.decode(codes)

    def _must_stop(self) -> bool:
        if not self.speaker.has_room:
            log.warning("stopped after %d frames: the cache of %d rows is full, the sentence may be cut off", self._count, self.speaker.stream.cache_length)
        elif self._count == self._script.max_frames:
            seconds = self._count * self._constants.samples_per_frame / self._constants.sample_rate
            log.warning("stopped at the limit of %d frames (%.1f s): the sentence may be cut off", self._count, seconds)
        else:
            return False
        return True


def speak(stream: Stream, constants: Constants, script: Script, kept: PrefixCache) -> Generator[np.ndarray, None, bool]:
    """Yields float32 samples, `chunk_frames` frames at a time; returns whether the model itself ended the speech."""
    utterance = Utterance(stream, constants, script, kept)
    speaker = utterance.speaker
    while utterance.goes_on:
        codes = speaker.frame(utterance.noise())
        yield from utterance.tell(codes)
        if utterance.goes_on:
            speaker.step(speaker.embed(codes))
    return utterance.ended


def speak_together(stream: Stream, constants: Constants, scripts: Sequence[Script], kept: PrefixCache) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (index of a script, float32 samples), as many scripts at a time as the stream has callers; who is done makes room for the next."""
    choir, waiting = Choir(stream, constants), iter(enumerate(scripts))
    singing: list[tuple[int, Utterance] | None] = [None] * stream.count
    quiet = np.zeros((1, constants.n_codebooks - 1), np.float32)
    while True:
        for place, now in enumerate(singing):
            if now is None and (following := next(waiting, None)):
                index, script = following
                singing[place] = index, (utterance := Utterance(stream.alone(place), constants, script, kept))
                choir.singers[place] = utterance.speaker
        if not any(singing):
            return
        codes = choir.frame(np.concatenate([now[1].noise() if now else quiet for now in singing]))
        for place, now in enumerate(singing):
            if now:
                index, utterance = now
                for samples in utterance.tell(codes[place : place + 1]):
                    yield index, samples
                if not utterance.goes_on:
                    singing[place] = choir.singers[place] = None
        if any(singing):
            choir.step(codes)
