"""Speech from text with a Voxtral-TTS bundle: prompt, prefill, frame loop, codec. Works on any engine's streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bundle.errors import IntegrityError, UsageError
from bundle.manifest import ComponentEntry
from bundle.record import first_fault
from runtime.engines.base import Engine, Stream
from runtime.engines.states import Arrays
from runtime.families.base import BenchSettings, Rehearsal, TimeSteps, Wanted
from runtime.text.tokenizer import SpeechTokenizer

FAMILY = "voxtral_tts"
EMPTY_AUDIO, END_AUDIO, FIRST_CODE = 0, 1, 2  # the first two rows of every code book are specials
TRACED_FRAME = 3  # frame whose hidden state conditions the velocities that a trace gives
REHEARSED = 16  # ids of a rehearsal's prompt
MEL_BINS, MEL_WINDOW, MEL_HOP = 80, 1024, 256
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

BATCHED = (
    "embed_codes",
    "decode_step",
    "acoustic_step",
)  # are called for several utterances at once where an engine can


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
        raise IntegrityError(
            f"manifest.json: constants: {first_fault(error)}; export the bundle again"
        ) from None


def open_tokenizer(path: Path) -> SpeechTokenizer:
    """Raises IntegrityError."""
    return SpeechTokenizer(path)


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
            raise UsageError(
                f"prompt: {places.sum()} [AUDIO] ids for a voice of {voice.shape[0]} rows; expected as many"
            )
        rows = self.position + len(ids) + len(extra)
        _check_room(rows, self.stream.capacity("prefill"))
        embeddings = self.stream.run("embed_text", {"ids": np.array([[*ids, *extra]], dtype=np.int64)})[
            "embeddings"
        ].copy()
        embeddings[0, : len(ids)][places] = voice
        outputs = self.stream.run(
            "prefill", {"embeddings": embeddings, "position": np.array([self.position])}
        )
        self.position = rows
        return outputs

    def frame(self, noise: np.ndarray, outlook: Outlook | None = None) -> np.ndarray:
        """noise float32 [1, K - 1] -> codes int64 [1, K] from an outlook, by default the last; the first may be END_AUDIO."""
        outlook = outlook or self.outlook
        return np.concatenate(
            (
                [[self.semantic_code(outlook)]],
                acoustic_codes(self.stream, self.constants, noise, outlook.condition),
            ),
            axis=1,
        )

    def embed(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [1, K] of a frame -> float32 [1, 1, dim], the next input of the backbone."""
        return self.stream.run("embed_codes", {"codes": codes})["embeddings"]

    def step(self, embeddings: np.ndarray) -> None:
        """Feeds a frame's embedding back: the next outlook."""
        self.advance(
            self.stream.run("decode_step", {"embeddings": embeddings, "position": np.array([self.position])})
        )

    def advance(self, outputs: Arrays) -> None:
        """What `decode_step` gave for this utterance."""
        self._keep(outputs)
        self.position += 1

    @property
    def has_room(self) -> bool:
        """Whether the cache holds another step."""
        return self.position < self.stream.capacity("decode_step")

    def velocity(self, x: np.ndarray, step: int, condition: np.ndarray) -> np.ndarray:
        """x float32 [1, K - 1], condition [1, acoustic dim] -> float32 [2, K - 1]: guided and unguided velocity at a step."""
        return self.stream.run("acoustic_step", {"x": x, "step": np.array([step]), "condition": condition})[
            "velocity"
        ][0]

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [T, K] of the next frames -> float32 [T · samples_per_frame]."""
        most = self.stream.signatures["codec_step"].dims.get("T", (1, 1))[1]
        pieces = []
        for start in range(0, len(codes), most):
            part = codes[None, start : start + most]
            pieces.append(
                self.stream.run("codec_step", {"codes": part, "position": np.array([self._decoded])})[
                    "audio"
                ][0]
            )
            self._decoded += part.shape[1]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)

    def _keep(self, outputs: dict[str, np.ndarray]) -> None:
        self.outlook = Outlook(outputs["hidden"][0, -1], outputs["semantic_logits"][0], outputs["condition"])

    def semantic_code(self, outlook: Outlook | None = None) -> int:
        """The code of an outlook, by default the last; it may be END_AUDIO."""
        speakable = (
            (outlook or self.outlook).semantic_logits[: FIRST_CODE + self.constants.semantic_codes].copy()
        )  # rows beyond are padding
        speakable[EMPTY_AUDIO] = -np.inf
        return int(speakable.argmax())


class Choir:
    """Several utterances on one stream, a frame of each at a time: weights are read once for all of them.

    Each singer, of whom there is one at least, is a `Speaker` on `stream.slot(index)`; where there is None, nothing that is
    computed is kept.
    """

    def __init__(self, stream: Stream, constants: Constants):
        self.stream, self.constants = stream, constants
        self.singers: list[Speaker | None] = [None] * stream.batch

    def frame(self, noise: np.ndarray) -> np.ndarray:
        """noise float32 [count, K - 1] -> codes int64 [count, K]."""
        someone = next(filter(None, self.singers))
        conditions = np.concatenate([(singer or someone).outlook.condition for singer in self.singers])
        semantic = [[singer.semantic_code() if singer else EMPTY_AUDIO] for singer in self.singers]
        return np.concatenate(
            (semantic, acoustic_codes(self.stream, self.constants, noise, conditions)), axis=1
        )

    def step(self, codes: np.ndarray) -> None:
        """Feeds codes [count, K] back: the next outlook of each."""
        embeddings = self.stream.run("embed_codes", {"codes": codes})["embeddings"]
        positions = np.array([singer.position if singer else 0 for singer in self.singers])
        outputs = self.stream.run("decode_step", {"embeddings": embeddings, "position": positions})
        for index, singer in enumerate(self.singers):
            if singer:
                singer.advance({name: array[index : index + 1] for name, array in outputs.items()})


def acoustic_codes(
    stream: Stream, constants: Constants, noise: np.ndarray, condition: np.ndarray
) -> np.ndarray:
    """noise float32 [B, K - 1], condition [B, acoustic dim] -> codes int64 [B, K - 1], in all Euler steps."""
    x = noise
    for step in range(constants.euler_steps):
        x = stream.run("acoustic_step", {"x": x, "step": np.full(len(x), step), "condition": condition})[
            "next_x"
        ]
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


def trace_inputs(constants: Constants) -> dict[str, Wanted]:
    """What a trace takes: a prompt and noise; codes to feed back, codes for the codec alone, the point of the velocities."""
    books, codes = (
        constants.n_codebooks,
        (
            constants.semantic_codes + FIRST_CODE,
            *[constants.acoustic_levels + FIRST_CODE] * (constants.n_codebooks - 1),
        ),
    )
    return {
        "ids": Wanted((None,), (constants.vocab_size,)),
        "voice": Wanted((None, constants.dim)),
        "noise": Wanted(("frames", books - 1)),
        "codes": Wanted(("frames", books), codes, is_optional=True),
        "codec_codes": Wanted((1, None, books), codes, is_optional=True),
        "vel_x": Wanted((1, books - 1), is_optional=True),
    }


def trace(engine: Engine, constants: Constants, inputs: Arrays, live: bool) -> Arrays:
    """Runs the utterance; given `codes` are fed back in place of the ones chosen (teacher forcing). `live` changes nothing: speech is
    made frame by frame anyway."""
    speaker = Speaker(engine.stream(), constants)
    outputs = {"prefill_hidden": speaker.prefill(inputs["ids"], inputs["voice"])}
    chosen, outlooks, forced = [], [], inputs.get("codes")
    for index in range(len(inputs["noise"])):
        outlooks.append(speaker.outlook)
        chosen.append(speaker.frame(inputs["noise"][index : index + 1]))
        if index + 1 < len(inputs["noise"]):
            speaker.step(speaker.embed(chosen[-1] if forced is None else forced[index : index + 1]))
    outputs["hidden"] = np.stack([outlook.hidden for outlook in outlooks])
    outputs["semantic_logits"] = np.stack([outlook.semantic_logits for outlook in outlooks])
    outputs["codes"] = np.concatenate(chosen)
    traced = min(TRACED_FRAME, len(outlooks) - 1)
    outputs["vel_x"] = inputs.get("vel_x", inputs["noise"][traced : traced + 1])
    for step in range(constants.euler_steps):
        outputs[f"velocity_{step / constants.euler_steps:.4f}"] = speaker.velocity(
            outputs["vel_x"], step, outlooks[traced].condition
        )
    if "codec_codes" in inputs:
        codec = Speaker(engine.stream(), constants)
        outputs["audio"] = codec.decode(inputs["codec_codes"][0])[None]
    return outputs


def _begun(stream: Stream, constants: Constants, frames: int) -> tuple[Speaker, np.ndarray]:
    """A fixed prompt without a voice that has been read, and fixed noise [frames, 1, K - 1]."""
    generator = np.random.default_rng(5)
    ids = np.concatenate(
        ([constants.bos_id, constants.begin_audio_id], generator.integers(0, constants.vocab_size, REHEARSED))
    )
    speaker = Speaker(stream, constants)
    noise = generator.standard_normal((frames, 1, constants.n_codebooks - 1), dtype=np.float32)
    speaker.prefill(ids[ids != constants.audio_id], np.zeros((0, constants.dim), np.float32))
    return speaker, noise


def rehearse(stream: Stream, constants: Constants, steps: int, forced: np.ndarray | None = None) -> Rehearsal:
    """So many frames of a fixed prompt; `forced` codes [steps, K] are fed back instead of the stream's own, and then the graphs run one
    after the other, not in turns."""
    embedder = Speaker(stream, constants)
    embedded = [] if forced is None else [embedder.embed(row[None]) for row in forced]
    speaker, noise = _begun(stream, constants, steps)
    outlooks, codes = [speaker.outlook], []
    for index in range(steps - 1):
        if forced is None:
            codes.append(speaker.frame(noise[index]))
        speaker.step(speaker.embed(codes[-1]) if forced is None else embedded[index])
        outlooks.append(speaker.outlook)
    codes += [speaker.frame(noise[index], outlooks[index]) for index in range(len(codes), steps)]
    live = slice(EMPTY_AUDIO + 1, FIRST_CODE + constants.semantic_codes)
    logits = np.stack([outlook.semantic_logits[live] for outlook in outlooks])
    return Rehearsal(
        np.concatenate(codes),
        logits,
        np.stack([outlook.hidden for outlook in outlooks]),
        first=EMPTY_AUDIO + 1,
    )


def perform(stream: Stream, constants: Constants, steps: int) -> np.ndarray:
    """Samples float32 [n] of the same utterance up to END_AUDIO or so many frames, each code fed back."""
    speaker, noise = _begun(stream, constants, steps)
    codes: list[np.ndarray] = []
    for index in range(steps):
        found = speaker.frame(noise[index])
        if found[0, 0] == END_AUDIO:
            break
        codes.append(found[0])
        speaker.step(speaker.embed(found))
    return speaker.decode(np.array(codes, dtype=np.int64).reshape(-1, constants.n_codebooks))


def compare(found: np.ndarray, expected: np.ndarray, constants: Constants) -> dict[str, float]:
    """Seconds of both, and the log-mel distance of what both have."""
    shared = min(len(found), len(expected))
    seconds = {
        "seconds": len(found) / constants.sample_rate,
        "seconds_expected": len(expected) / constants.sample_rate,
    }
    if shared < MEL_WINDOW:
        return seconds
    difference = _log_mel(found[:shared], constants.sample_rate) - _log_mel(
        expected[:shared], constants.sample_rate
    )
    return seconds | {"log_mel_distance_db": float(np.sqrt(np.square(difference).mean(axis=0)).mean())}


def _log_mel(samples: np.ndarray, rate: int) -> np.ndarray:
    """Decibels [mel bins, windows] of the power spectrum under a Hann window."""
    from mistral_common.audio import mel_filter_bank

    filters = mel_filter_bank(MEL_WINDOW // 2 + 1, MEL_BINS, 0.0, rate / 2, rate)
    windows = np.lib.stride_tricks.sliding_window_view(samples, MEL_WINDOW)[::MEL_HOP] * np.hanning(
        MEL_WINDOW
    )
    power = np.square(np.abs(np.fft.rfft(windows, axis=-1)))
    return 10 * np.log10(np.maximum(power @ filters, 1e-10)).T


FIRST, BENCH_OPTIONS = "first_sound_s", ("streams", "prompt_tokens")


class Exercise:
    """Frames of an utterance, every code fed back; a model that would stop goes on."""

    def __init__(self, stream: Stream, constants: Constants, settings: BenchSettings, known: Arrays | None):
        """`known` are the rows that the voice leaves in the caches."""
        voice, audio, marker = settings.voice, constants.audio_id, constants.begin_audio_id
        prefix = np.array([constants.bos_id, marker, *[audio] * len(voice), marker])
        self.speaker, self._constants = Speaker(stream, constants), constants
        self._noise, self._codes = np.random.default_rng(1), np.zeros((0, constants.n_codebooks), np.int64)
        if known is None:
            self.speaker.begin(prefix, voice)
            known = stream.save_rows(len(prefix))
        else:
            self.speaker.resume(known, len(prefix))
        self.known = known
        ids = np.random.default_rng(0).integers(0, constants.vocab_size, settings.prompt_tokens)
        self.speaker.prefill(np.array([*np.where(ids == audio, marker, ids), marker, marker]), voice[:0])

    def step(self) -> None:
        if len(self._codes):
            self.speaker.step(self.speaker.embed(self._codes))
        self._codes = self.speaker.frame(self.noise())
        self._codes[0, 0] = max(self._codes[0, 0], FIRST_CODE)
        self.speaker.decode(self._codes)

    def noise(self) -> np.ndarray:
        return self._noise.standard_normal((1, self._constants.n_codebooks - 1), dtype=np.float32)


exercise = Exercise


def rows_needed(constants: Constants, settings: BenchSettings, steps: int) -> int:
    return len(settings.voice) + settings.prompt_tokens + steps + 6


def check_at_once(entries: dict[str, ComponentEntry], counts: tuple[int, ...]) -> None:
    most = min(entries[name].max_batch for name in BATCHED)
    if not all(1 <= count <= most for count in counts):
        raise UsageError(
            f"bench: --streams {','.join(map(str, counts))}: a call of this bundle serves 1 to {most}"
        )


def together(
    engine: Engine, constants: Constants, settings: BenchSettings, known: Arrays, time: TimeSteps
) -> list[dict[str, Any]]:
    """Frames of all callers a second, each frame of them one pass through the graphs but the codec's."""

    def start(timed: Stream) -> Callable[[], None]:
        choir = Choir(timed, constants)
        each = [Exercise(stream.slot(index), constants, settings, known) for index in range(stream.batch)]
        choir.singers[:] = [one.speaker for one in each]

        def step() -> None:
            codes = choir.frame(np.concatenate([one.noise() for one in each]))
            codes[:, 0] = np.maximum(codes[:, 0], FIRST_CODE)
            for one, row in zip(each, codes, strict=True):
                one.speaker.decode(row[None])
            choir.step(codes)

        return step

    rows = []
    for count in settings.at_once:
        stream = engine.batched(count)
        seconds, calls = time(stream, start)
        rows.append(
            {"streams": count, "frames_per_s": count / seconds, "pass_ms": seconds * 1e3, "median_ms": calls}
        )
    return rows


def bench_lines(result: dict[str, Any]) -> list[str]:
    rows = (
        f"{row['streams']} at once: {row['frames_per_s']:.1f} frames/s, {row['pass_ms']:.0f} ms for one of each"
        for row in result["streams"]
    )
    return [f"first sound {result[FIRST]:.2f} s after {result['prompt_tokens']} ids of a known voice", *rows]
