"""Text from speech with a Voxtral-Realtime bundle: front end, encoder, decoder on the clock of 80 ms. Works on any engine's streams."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bundle.errors import IntegrityError, UsageError, VoxportError
from bundle.manifest import ComponentEntry
from bundle.record import first_fault
from runtime.audio.captions import Word
from runtime.audio.mel import LogMel, MelSettings
from runtime.engines.base import Engine, Stream
from runtime.engines.states import Arrays
from runtime.families.base import BenchSettings, Rehearsal, TimeSteps, Wanted
from runtime.text.tokenizer import load_pieces

FAMILY = "voxtral_realtime"
Count = Annotated[int, Field(gt=0, le=2**24)]
Id = Annotated[int, Field(ge=0, lt=2**31)]
CALLS = {  # component: its inputs, its outputs
    "embed_tokens": ({"ids"}, {"embeddings"}),
    "audio_encoder": ({"mel", "position"}, {"embeddings"}),
    "prefill": ({"embeddings", "position", "delay"}, {"hidden", "logits"}),
    "decode_step": ({"embeddings", "position", "delay"}, {"hidden", "logits"}),
}
LIVE = "encode_chunk"  # in bundles that listen live
LOUDNESS = 0.1  # of a rehearsal's noise
PADS_END_WORD, LONGEST_WORD = 3, 80  # tokens, characters
Observer = Callable[[str, np.ndarray], None]


class Constants(BaseModel):
    """`constants` of the manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    sample_rate: Count
    samples_per_token: Count
    n_mels: Count
    hop_length: Count
    window_size: Count
    log_mel_least: float
    dim: Count
    vocab_size: Count
    left_pad_tokens: Count
    flush_tokens: Count
    bos_id: Id
    eos_id: Id
    pad_id: Id
    word_id: Id
    first_text_id: Id
    delays_ms: tuple[Count, ...] = Field(min_length=1)
    delays: tuple[Count, ...]

    @model_validator(mode="after")
    def _fit(self):
        if self.samples_per_token % self.hop_length:
            raise ValueError(
                f"samples_per_token {self.samples_per_token} is no multiple of hop_length {self.hop_length}"
            )
        if len(self.delays) != len(self.delays_ms):
            raise ValueError(
                f"{len(self.delays)} delays in tokens, {len(self.delays_ms)} in ms; expected as many"
            )
        return self

    @property
    def mel(self) -> MelSettings:
        return MelSettings(
            self.sample_rate, self.n_mels, self.window_size, self.hop_length, self.log_mel_least
        )

    @property
    def frames_per_token(self) -> int:
        return self.samples_per_token // self.hop_length

    @property
    def seconds_per_token(self) -> float:
        return self.samples_per_token / self.sample_rate

    def prompt_length(self, delay: int) -> int:
        """Positions of the prompt for one of the bundle's delays: BOS, the silence in front, the delay."""
        return 1 + self.left_pad_tokens + self.delays[delay]

    def delay_index(self, delay_ms: int | None) -> int:
        """Which of the bundle's delays; None is the first. Raises UsageError that lists them."""
        if delay_ms is not None and delay_ms not in self.delays_ms:
            listed = ", ".join(map(str, self.delays_ms))
            raise UsageError(
                f"--delay-ms {delay_ms}: this bundle was made for {listed} ms; export with --delay-ms {delay_ms}"
            )
        return 0 if delay_ms is None else self.delays_ms.index(delay_ms)


def parse_constants(constants: dict[str, Any], switches: dict[str, Any]) -> Constants:
    """Raises IntegrityError that names the constant."""
    try:
        return Constants.model_validate(constants)
    except ValidationError as error:
        raise IntegrityError(
            f"manifest.json: constants: {first_fault(error)}; export the bundle again"
        ) from None


def open_tokenizer(path: Path) -> Callable[[int], bytes]:
    """The bytes of a token. Raises IntegrityError."""
    return load_pieces(path)


class Listener:
    """One recording, or one live stream: samples in, a token for every 80 ms out.

    The published schedule: silence in front, a prompt that covers it and the delay, then one position for each 80 ms of sound, whose
    input is the sum of what was heard and of the token before; at the end silence enough for what is still due. [EOS] ends nothing.
    """

    def __init__(
        self,
        stream: Stream,
        constants: Constants,
        delay: int = 0,
        at_once: int | None = None,
        observe: Observer | None = None,
    ):
        """`delay` is one of the bundle's, `at_once` how many tokens a call of the encoder takes: by default as many as it can; 1 is
        for live, but for the silence in front. `observe(what, values)` is told of every `mel`, `audio_embeds` and `logits`."""
        self._stream, self.constants, self._delay = stream, constants, delay
        self._most = stream.signatures["audio_encoder"].dims["T"][1]
        self._at_once = at_once or self._most
        if self._at_once > self._most:
            raise UsageError(
                f"--chunk {at_once}: this bundle encodes {self._most} times 80 ms at once at most"
            )
        self._observe = observe or (lambda what, values: None)
        self.forced: np.ndarray | None = None  # tokens that are fed back in place of the chosen ones
        self._mel = LogMel(constants.mel)
        self._frames = np.zeros((0, constants.n_mels), np.float32)
        self._prompt: list[np.ndarray] = []
        self._encoded = self.position = self._samples = 0
        self._end = min(signature.capacity for signature in stream.signatures.values() if signature.capacity)
        self._token = constants.pad_id
        self._take(np.zeros(constants.left_pad_tokens * constants.samples_per_token, np.float32))

    def feed(self, samples: np.ndarray) -> Iterator[int]:
        """samples float32 [n] of `sample_rate` -> the tokens that became due. Raises UsageError where it is no such array, or a sample is
        not finite."""
        if not isinstance(samples, np.ndarray) or samples.ndim != 1 or samples.dtype.kind != "f":
            found = (
                f"{samples.dtype} {list(samples.shape)}"
                if isinstance(samples, np.ndarray | np.generic)
                else type(samples).__name__
            )
            raise UsageError(
                f"audio: a block of {found}, expected a NumPy array of float32 [n] in [-1, 1] at {self.constants.sample_rate} Hz"
            )
        if not np.isfinite(samples).all():
            place = (self._samples + int(np.argmin(np.isfinite(samples)))) / self.constants.sample_rate
            raise UsageError(f"audio: the sample at {place:.3f} s is not a finite number; mend the recording")
        self._samples += len(samples)
        self._take(samples)
        yield from self._listen(self._at_once)

    def finish(self) -> Iterator[int]:
        """The sound is over: what is still due. Nothing can be fed behind it."""
        step = self.constants.samples_per_token
        missing = -self._samples % step
        self._take(
            np.zeros(
                missing + (self.constants.delays[self._delay] + 1 + self.constants.flush_tokens) * step,
                np.float32,
            )
        )
        self._keep(self._mel.finish())
        yield from self._listen(self._at_once)
        yield from self._listen(1)

    def _take(self, samples: np.ndarray) -> None:
        self._keep(self._mel.feed(samples))

    def _keep(self, frames: np.ndarray) -> None:
        if len(frames):
            self._observe("mel", frames)
            self._frames = np.concatenate((self._frames, frames))

    def _listen(self, least: int) -> Iterator[int]:
        """Encodes what is complete, `least` tokens or more at a time, and decodes it."""
        frames = self.constants.frames_per_token
        while len(self._frames) >= least * frames:
            count = min(
                len(self._frames) // frames,
                self._most if self._encoded < self.constants.left_pad_tokens else self._at_once,
            )
            if self._encoded + count > self._end:
                raise VoxportError(
                    f"a stream ends after {self._end * self.constants.seconds_per_token / 3600:.0f} hours of sound; start a new one"
                )
            mel, self._frames = self._frames[: count * frames], self._frames[count * frames :]
            component = LIVE if count == 1 and LIVE in self._stream.signatures else "audio_encoder"
            inputs = {"mel": mel.reshape(1, count, frames, -1), "position": np.array([self._encoded])}
            embeddings = self._stream.run(component, inputs)["embeddings"]
            self._encoded += count
            self._observe("audio_embeds", embeddings[0])
            for index in range(count):
                if (token := self._decode(embeddings[:, index : index + 1])) is not None:
                    yield token

    def _decode(self, heard: np.ndarray) -> int | None:
        """heard float32 [1, 1, dim] of the next position -> its token; None within the prompt."""
        length = self.constants.prompt_length(self._delay)
        if self.position + len(self._prompt) < length:
            self._prompt.append(heard)
            if len(self._prompt) < length:
                return None
            outputs = self._prefill(
                [self.constants.bos_id] + [self.constants.pad_id] * (length - 1),
                np.concatenate(self._prompt, axis=1),
            )
            self._prompt = []
        else:
            outputs = self._run("decode_step", [self._token], heard)
        self._observe("logits", outputs["logits"])
        chosen = int(outputs["logits"][0].argmax())
        index = self.position - length
        self._token = chosen if self.forced is None else int(self.forced[index])
        return chosen

    def _prefill(self, ids: list[int], heard: np.ndarray) -> Arrays:
        """As many rows at once as the cache has; a window shorter than the prompt takes the others one by one."""
        most = self._stream.signatures["prefill"].dims["S"][1]
        outputs = self._run("prefill", ids[:most], heard[:, :most])
        for index in range(most, len(ids)):
            outputs = self._run("decode_step", ids[index : index + 1], heard[:, index : index + 1])
        return outputs

    def _run(self, component: str, ids: list[int], heard: np.ndarray) -> Arrays:
        """The next positions: ids of S tokens, heard float32 [1, S, dim]."""
        embeddings = heard + self._stream.run("embed_tokens", {"ids": np.array([ids])})["embeddings"]
        outputs = self._stream.run(
            component,
            {
                "embeddings": embeddings,
                "position": np.array([self.position]),
                "delay": np.array([self._delay]),
            },
        )
        self.position += len(ids)
        return outputs


class Transcript:
    """Tokens to text and words. A character may span tokens; a word begins at [STREAMING_WORD], and ends with the next one, with some
    [STREAMING_PAD], or where it is too long for one, as in scripts without spaces.

    The first token is due when the first 80 ms of sound are heard, the next 80 ms later: a word's times are those of the sound from its
    marker to its last token, by that clock. A word of many tokens is heard before they all are due, so its end is late rather than early.
    """

    def __init__(self, constants: Constants, piece: Callable[[int], bytes]):
        """`piece(id)` gives a token's bytes."""
        self._constants, self._piece = constants, piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._count = self._pads = 0
        self._open: tuple[str, float, float] | None = None
        self._words: list[Word] = []

    def add(self, token: int) -> str:
        """The text that the next token completes, often none."""
        start = self._count * self._constants.seconds_per_token  # the 80 ms that the token is about
        self._count += 1
        self._pads = self._pads + 1 if token == self._constants.pad_id else 0
        if token < self._constants.first_text_id:
            if token == self._constants.word_id or self._pads == PADS_END_WORD:
                self._close()
            if token == self._constants.word_id:
                self._open = "", start, start
            return ""
        return self._append(self._decoder.decode(self._piece(token)), start)

    def finish(self) -> str:
        """What is left of a character that never ended."""
        text = self._append(
            self._decoder.decode(b"", final=True), self._count * self._constants.seconds_per_token
        )
        self._close()
        return text

    def take_words(self) -> list[Word]:
        """Those that were completed since the last call."""
        words, self._words = self._words, []
        return words

    def _append(self, text: str, start: float) -> str:
        if text:
            begun = self._open or ("", start, start)
            self._open = begun[0] + text, begun[1], start + self._constants.seconds_per_token
            if len(self._open[0]) >= LONGEST_WORD:
                self._close()
        return text

    def _close(self) -> None:
        if self._open and self._open[0].strip():
            text, start, end = self._open
            self._words.append(Word(text.strip(), start, end))
        self._open = None


TRACED = ("mel", "audio_embeds", "logits")


def trace_inputs(constants: Constants) -> dict[str, Wanted]:
    """What a trace takes: 16 kHz samples."""
    return {"audio": Wanted((None,))}


def trace(engine: Engine, constants: Constants, inputs: Arrays, live: bool) -> Arrays:
    """Everything between samples and tokens, at the bundle's first delay; `live` in steps of 80 ms."""
    told: dict[str, list[np.ndarray]] = {name: [] for name in TRACED}
    listener = Listener(
        engine.stream(),
        constants,
        at_once=1 if live else None,
        observe=lambda what, values: told[what].append(values),
    )
    samples, size = inputs["audio"], constants.samples_per_token if live else max(1, len(inputs["audio"]))
    tokens = [
        token
        for start in range(0, len(samples), size)
        for token in listener.feed(samples[start : start + size])
    ]
    tokens += listener.finish()
    embeddings = np.concatenate(told["audio_embeds"])
    return {
        "mel": np.concatenate(told["mel"]).T,
        "audio_embeds": embeddings,
        "prompt_len": np.array(constants.prompt_length(0)),
        "n_audio": np.array(len(embeddings)),
        "prefill_logits": told["logits"][0][0],
        "tokens": np.array(tokens),
    }


def rehearse(stream: Stream, constants: Constants, steps: int, forced: np.ndarray | None = None) -> Rehearsal:
    """So many tokens of a fixed noise; `forced` tokens [steps, 1] are fed back instead of the stream's own."""
    logits: list[np.ndarray] = []
    listener = Listener(
        stream, constants, observe=lambda what, values: logits.append(values) if what == "logits" else None
    )
    listener.forced = None if forced is None else forced[:, 0]
    samples = (
        np.random.default_rng(5).standard_normal(steps * constants.samples_per_token, dtype=np.float32)
        * LOUDNESS
    )
    tokens = list(islice(chain(listener.feed(samples), listener.finish()), steps))
    found = np.concatenate(logits)[:steps]
    return Rehearsal(logits=found, codes=np.array(tokens)[:, None], hidden=found)


def perform(stream: Stream, constants: Constants, steps: int) -> np.ndarray:
    """The tokens of a free run: int64 [steps]."""
    return rehearse(stream, constants, steps).codes[:, 0]


def compare(found: np.ndarray, expected: np.ndarray, constants: Constants) -> dict[str, float]:
    return {"tokens": float(len(found)), "tokens_equal": float((found == expected).mean())}


FIRST, BENCH_OPTIONS = "first_token_s", ("chunks",)


class Exercise:
    """A live stream of noise; the first step is the first that gives a token."""

    known = None

    def __init__(
        self,
        stream: Stream,
        constants: Constants,
        settings: BenchSettings,
        known: None = None,
        at_once: int = 1,
    ):
        self._listener, self._noise = Listener(stream, constants, at_once=at_once), np.random.default_rng(1)
        self._size = at_once * constants.samples_per_token
        self._feed(
            constants.delays[0] * constants.samples_per_token + constants.window_size // 2
        )  # with what a frame looks ahead

    def _feed(self, count: int) -> None:
        for _ in self._listener.feed(LOUDNESS * self._noise.standard_normal(count, dtype=np.float32)):
            pass

    def step(self) -> None:
        self._feed(self._size)


exercise = Exercise


def rows_needed(constants: Constants, settings: BenchSettings, steps: int) -> int:
    return 0


def check_at_once(entries: dict[str, ComponentEntry], counts: tuple[int, ...]) -> None:
    if LIVE not in entries:
        raise UsageError(
            "bench: this bundle was made for recordings; export with --streaming to time a live one"
        )
    most = entries["audio_encoder"].signature.dims["T"][1]
    if not all(1 <= count <= most for count in counts):
        raise UsageError(
            f"bench: --chunks {','.join(map(str, counts))}: one call encodes 1 to {most} times 80 ms"
        )


def together(
    engine: Engine, constants: Constants, settings: BenchSettings, known: None, time: TimeSteps
) -> list[dict[str, Any]]:
    """What 80 ms cost where several are encoded at once, and how much later their text comes for it."""

    def start(timed: Stream) -> Callable[[], None]:
        return Exercise(timed, constants, settings, at_once=count).step

    rows = []
    for count in settings.at_once:
        seconds, calls = time(engine.stream(), start)
        added = (count - 1) * constants.seconds_per_token
        rows.append(
            {
                "chunks": count,
                "step_ms": seconds * 1e3 / count,
                "added_delay_ms": added * 1e3,
                "median_ms": calls,
            }
        )
    return rows


def bench_lines(result: dict[str, Any]) -> list[str]:
    rows = (
        f"{row['chunks']} chunks encoded at once: {row['step_ms']:.1f} ms for 80 ms of sound, text {row['added_delay_ms']:.0f} ms later"
        for row in result["streams"]
    )
    return [
        f"first token {result[FIRST]:.2f} s after a new stream begins, the silence in front of the sound included",
        *rows,
    ]
