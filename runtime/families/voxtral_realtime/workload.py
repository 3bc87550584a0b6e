"""Fixed runs of Voxtral-Realtime on noise: for verification, traces and the benchmark."""

from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from voxport.bundle.constants.voxtral_realtime import LIVE_ENCODER, RealtimeConstants
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families.voxtral_realtime.decoder import DecodeOptions, StreamingDecoder
from voxport.runtime.families.workload import (
    BenchSettings,
    BenchWorkload,
    ForcedRun,
    TraceWorkload,
    VerificationWorkload,
)
from voxport.runtime.trace import ArraySpec

NOISE_LEVEL = 0.1  # standard deviation


def teacher_forced_run(
    stream: Stream, constants: RealtimeConstants, steps: int, forced: np.ndarray | None = None
) -> ForcedRun:
    """The first `steps` tokens of noise.

    `forced` tokens int64 [steps, 1] are fed back instead of the chosen ones.
    """
    logits: list[np.ndarray] = []

    def observe(name: str, values: np.ndarray) -> None:
        if name == "logits":
            logits.append(values)

    options = DecodeOptions(forced=None if forced is None else forced[:, 0])
    decoder = StreamingDecoder(stream, constants, options, observe)
    size = steps * constants.samples_per_token
    samples = NOISE_LEVEL * np.random.default_rng(5).standard_normal(size, dtype=np.float32)
    tokens = list(islice(chain(decoder.feed(samples), decoder.finish()), steps))
    found = np.concatenate(logits)[:steps]
    return ForcedRun(logits=found, codes=np.array(tokens)[:, None], hidden=found)


def free_run(stream: Stream, constants: RealtimeConstants, steps: int) -> np.ndarray:
    """The tokens of a free run: int64 [steps]."""
    return teacher_forced_run(stream, constants, steps).codes[:, 0]


def compare(found: np.ndarray, expected: np.ndarray, constants: RealtimeConstants) -> dict[str, float]:
    """The number of tokens, and the fraction of equal ones."""
    return {"tokens": float(len(found)), "tokens_equal": float((found == expected).mean())}


VERIFICATION = VerificationWorkload[RealtimeConstants](teacher_forced_run, free_run, compare)


def _inputs(constants: RealtimeConstants) -> dict[str, ArraySpec]:
    """`audio` float32 [n] at `sample_rate`; optionally `delay` int64 [1], a number in `delays_ms`, and
    `tokens` to feed back.
    """
    return {
        "audio": ArraySpec((None,)),
        "delay": ArraySpec((1,), (len(constants.delays),), is_optional=True),
        "tokens": ArraySpec((None,), (constants.vocab_size,), is_optional=True),
    }


def _run(
    engine: Engine, constants: RealtimeConstants, inputs: Arrays, live: bool, tokenizer_files: Sequence[Path]
) -> Arrays:
    """All values at one delay, by default the first. `live` feeds and encodes 80 ms at a time."""
    delay = int(inputs["delay"][0]) if "delay" in inputs else 0
    values: dict[str, list[np.ndarray]] = {"mel": [], "audio_embeds": [], "logits": []}
    decoder = StreamingDecoder(
        engine.stream(),
        constants,
        DecodeOptions(delay, 1 if live else None, inputs.get("tokens")),
        lambda name, array: values[name].append(array),
    )
    samples = inputs["audio"]
    size = constants.samples_per_token if live else max(1, len(samples))
    blocks = (samples[start : start + size] for start in range(0, len(samples), size))
    tokens = [token for block in blocks for token in decoder.feed(block)]
    tokens += decoder.finish()
    embeddings = np.concatenate(values["audio_embeds"])
    return {
        "mel": np.concatenate(values["mel"]).T,
        "audio_embeds": embeddings,
        "prompt_len": np.array(constants.prompt_length(delay)),
        "n_audio": np.array(len(embeddings)),
        "prefill_logits": values["logits"][0][0],
        "tokens": np.array(tokens),
        "last_logits": values["logits"][-1][-1],
    }


TRACE = TraceWorkload[RealtimeConstants](_inputs, _run)


class LiveWorkload:
    """A live stream of noise. The first step returns the first token. See `Workload`."""

    prepared: Arrays | None = None

    def __init__(
        self, stream: Stream, constants: RealtimeConstants, settings: BenchSettings, prepared: Arrays | None
    ):
        self._decoder = StreamingDecoder(stream, constants, DecodeOptions(chunk_tokens=1))
        self._rng, self._samples = np.random.default_rng(1), constants.samples_per_token
        # Half a window follows the silence and the delay: samples that the last mel frame needs.
        self._feed(constants.delays[0] * constants.samples_per_token + constants.window_size // 2)

    def _feed(self, count: int) -> None:
        for _ in self._decoder.feed(NOISE_LEVEL * self._rng.standard_normal(count, dtype=np.float32)):
            pass

    def step(self) -> None:
        self._feed(self._samples)


def _check(bundle: Bundle) -> None:
    if LIVE_ENCODER not in {entry.name for entry in bundle.components}:
        raise UsageError("this bundle is for recordings; export it with --streaming to time it")


BENCH = BenchWorkload[RealtimeConstants](
    first_output="first_token_s",
    summary="first token {first_token_s:.2f} s after the start of a stream, with its silence",
    start=LiveWorkload,
    check=_check,
)
