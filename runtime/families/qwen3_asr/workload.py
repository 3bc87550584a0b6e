"""Fixed runs of Qwen3-ASR and its aligner on noise: for verification, traces and the benchmark."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voxport.bundle.constants.qwen3_asr import Qwen3ASRConstants
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families.qwen3_asr.aligner import aligner_prompt, time_logits
from voxport.runtime.families.qwen3_asr.encoder import SoundEncoder
from voxport.runtime.families.qwen3_asr.features import GrowingMel
from voxport.runtime.families.qwen3_asr.recogniser import Recogniser
from voxport.runtime.families.qwen3_asr.text import Tokenizer
from voxport.runtime.families.workload import (
    BenchSettings,
    BenchWorkload,
    ForcedRun,
    TraceWorkload,
    VerificationWorkload,
)
from voxport.runtime.trace import ArraySpec

NOISE_LEVEL = 0.1  # standard deviation
WINDOWS = 1.25  # of the encoder, in a fixed run
TOKENS_PER_SECOND = 3  # of text in speech


def noise(constants: Qwen3ASRConstants, windows: float, seed: int = 5) -> np.ndarray:
    """float32 samples [n] of so many windows."""
    frames = round(windows * constants.window_chunks * constants.chunk_frames)
    rng = np.random.default_rng(seed)
    return NOISE_LEVEL * rng.standard_normal(frames * constants.hop_length, dtype=np.float32)


def encoded(stream: Stream, constants: Qwen3ASRConstants, samples: np.ndarray) -> np.ndarray:
    """Rows of sound float32 [n, dim]."""
    return SoundEncoder(stream, constants).encode(GrowingMel(constants).of(samples))


def short_prompt(rows: int, constants: Qwen3ASRConstants) -> list[int]:
    """A prompt without words, for which no tokenizer is needed."""
    c = constants
    return [c.im_start_id, c.audio_start_id, *[c.audio_pad_id] * rows, c.audio_end_id, c.im_end_id]


def teacher_forced_run(
    stream: Stream, constants: Qwen3ASRConstants, steps: int, forced: np.ndarray | None = None
) -> ForcedRun:
    """The first `steps` tokens of noise; of an aligner, so many times of words without letters.

    `forced` tokens int64 [steps, 1] are fed back instead of the chosen ones. The end does not stop the run.
    """
    sound = encoded(stream, constants, noise(constants, WINDOWS))
    if constants.aligner:
        ids = aligner_prompt(len(sound), constants, [constants.aligner.timestamp_id] * steps)
        logits = time_logits(stream, constants, ids, sound)
        return ForcedRun(logits=logits, codes=logits.argmax(axis=1)[:, None], hidden=logits)
    recogniser, found, hidden = Recogniser(stream, constants), list[np.ndarray](), list[np.ndarray]()
    for step in range(steps):
        if step == 0:
            logits = recogniser.read(short_prompt(len(sound), constants), sound)
        else:
            logits = recogniser.advance(int(found[-1].argmax() if forced is None else forced[step - 1, 0]))
        found.append(logits)
        hidden.append(recogniser.hidden)
    codes = np.stack(found).argmax(axis=1)[:, None]
    return ForcedRun(logits=np.stack(found), codes=codes, hidden=np.stack(hidden))


def free_run(stream: Stream, constants: Qwen3ASRConstants, steps: int) -> np.ndarray:
    """The tokens or times of a free run: int64 [steps]."""
    return teacher_forced_run(stream, constants, steps).codes[:, 0]


def compare(found: np.ndarray, expected: np.ndarray, constants: Qwen3ASRConstants) -> dict[str, float]:
    """The number of tokens, and the fraction of equal ones."""
    return {"tokens": float(len(found)), "tokens_equal": float((found == expected).mean())}


VERIFICATION = VerificationWorkload[Qwen3ASRConstants](teacher_forced_run, free_run, compare)


def _inputs(constants: Qwen3ASRConstants) -> dict[str, ArraySpec]:
    """`audio` float32 [n] at `sample_rate`. `tokens` to feed back; an aligner needs them, as ids of words and
    times.
    """
    tokens = ArraySpec((None,), (constants.vocab_size,), is_optional=constants.aligner is None)
    return {"audio": ArraySpec((None,)), "tokens": tokens}


def _run(
    engine: Engine, constants: Qwen3ASRConstants, inputs: Arrays, live: bool, tokenizer_files: Sequence[Path]
) -> Arrays:
    return values_of_recording(engine, constants, inputs, tokenizer_files)


def values_of_recording(
    engine: Engine,
    constants: Qwen3ASRConstants,
    inputs: Arrays,
    tokenizer_files: Sequence[Path],
    most: int | None = None,
) -> Arrays:
    """All values of one recording, with an empty context. At most `most` tokens are chosen freely."""
    stream, mel = engine.stream(), GrowingMel(constants).of(inputs["audio"])
    sound = SoundEncoder(stream, constants).encode(mel)
    found = {"mel": mel, "audio_embeds": sound}
    if constants.aligner:
        ids = aligner_prompt(len(sound), constants, inputs["tokens"].tolist())
        of_times = time_logits(stream, constants, ids, sound)
        return found | {"time_logits": of_times, "times": of_times.argmax(axis=1)}
    prompt = Tokenizer(tokenizer_files, constants).prompt(len(sound))
    recogniser = Recogniser(stream, constants)
    logits = [recogniser.read(prompt, sound)]
    forced, room = inputs.get("tokens"), stream.capacity("decode_step") - len(prompt)
    count, tokens = min(room, most or room) if forced is None else len(forced), [int(logits[0].argmax())]
    while len(tokens) < count:
        if forced is None and tokens[-1] in constants.end_ids:
            break
        logits.append(recogniser.advance(tokens[-1] if forced is None else int(forced[len(tokens) - 1])))
        tokens.append(int(logits[-1].argmax()))
    found |= {"prompt": np.array(prompt), "prefill_logits": logits[0], "tokens": np.array(tokens)}
    return found | {"last_logits": logits[-1]}


TRACE = TraceWorkload[Qwen3ASRConstants](_inputs, _run)


class RecordingWorkload:
    """Recordings of noise of one window, with as many tokens as speech has; an aligner reads them with two
    places of times for each. See `Workload`.
    """

    prepared: Arrays | None = None

    def __init__(
        self, stream: Stream, constants: Qwen3ASRConstants, settings: BenchSettings, prepared: Arrays | None
    ):
        self._stream, self._constants, self._count = stream, constants, 0
        samples = noise(constants, 1)
        self._tokens = round(len(samples) / constants.sample_rate * TOKENS_PER_SECOND)

    def step(self) -> None:
        self._count += 1  # another sound, of which no cache has a row
        sound = encoded(self._stream, self._constants, noise(self._constants, 1, self._count))
        if aligner := self._constants.aligner:
            words = [aligner.timestamp_id] * 3 * self._tokens
            ids = aligner_prompt(len(sound), self._constants, words)
            time_logits(self._stream, self._constants, ids, sound)
            return
        recogniser = Recogniser(self._stream, self._constants)
        logits = recogniser.read(short_prompt(len(sound), self._constants), sound)
        for _ in range(self._tokens):
            logits = recogniser.advance(int(logits.argmax()))


def _seconds(constants: Qwen3ASRConstants) -> float:
    return constants.window_chunks * constants.chunk_frames * constants.hop_length / constants.sample_rate


BENCH = BenchWorkload[Qwen3ASRConstants](
    first_output="recording_s",
    summary="a recording of one window {recording_s:.2f} s after its end",
    start=RecordingWorkload,
    step_seconds=_seconds,
)
