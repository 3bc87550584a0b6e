"""Fixed runs of Voxtral-Realtime on noise: for verification, traces and the benchmark."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np

from voxport.bundle.constants.voxtral_realtime import ENCODER, LIVE_ENCODER, RealtimeConstants
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import ComponentEntry
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families.voxtral_realtime.decoder import DecodeOptions, StreamingDecoder
from voxport.runtime.families.workload import (
    BenchSettings,
    BenchWorkload,
    Figures,
    ForcedRun,
    TimeSteps,
    TraceWorkload,
    VerificationWorkload,
)
from voxport.runtime.trace import ArraySpec

NOISE_LEVEL = 0.1  # standard deviation
FIRST_OUTPUT = "first_token_s"


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


VERIFICATION = VerificationWorkload[RealtimeConstants](
    teacher_forced_run,
    free_run,
    compare,
)


def _inputs(constants: RealtimeConstants) -> dict[str, ArraySpec]:
    """`audio` float32 [n] at `sample_rate`; optionally `delay` int64 [1], a number in `delays_ms`."""
    return {"audio": ArraySpec((None,)), "delay": ArraySpec((1,), (len(constants.delays),), is_optional=True)}


def _run(
    engine: Engine, constants: RealtimeConstants, inputs: Arrays, live: bool, tokenizer_files: Sequence[Path]
) -> Arrays:
    """All values at one delay, by default the first. `live` feeds and encodes 80 ms at a time."""
    delay = int(inputs["delay"][0]) if "delay" in inputs else 0
    values: dict[str, list[np.ndarray]] = {"mel": [], "audio_embeds": [], "logits": []}
    decoder = StreamingDecoder(
        engine.stream(),
        constants,
        DecodeOptions(delay, chunk_tokens=1 if live else None),
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
    }


TRACE = TraceWorkload[RealtimeConstants](_inputs, _run)


class LiveWorkload:
    """A live stream of noise. The first step returns the first token. See `Workload`."""

    prepared: Arrays | None = None

    def __init__(self, stream: Stream, constants: RealtimeConstants, chunk_tokens: int = 1):
        self._decoder = StreamingDecoder(stream, constants, DecodeOptions(chunk_tokens=chunk_tokens))
        self._rng = np.random.default_rng(1)
        self._samples = chunk_tokens * constants.samples_per_token
        # Half a window follows the silence and the delay: samples that the last mel frame needs.
        self._feed(constants.delays[0] * constants.samples_per_token + constants.window_size // 2)

    def _feed(self, count: int) -> None:
        for _ in self._decoder.feed(NOISE_LEVEL * self._rng.standard_normal(count, dtype=np.float32)):
            pass

    def step(self) -> None:
        self._feed(self._samples)


def _check_counts(components: Mapping[str, ComponentEntry], counts: tuple[int, ...]) -> None:
    """Raises UsageError if the bundle has no live encoder, or a call cannot encode so many chunks."""
    if LIVE_ENCODER not in components:
        raise UsageError("this bundle is for recordings; export it with --streaming to time it")
    limit = components[ENCODER].signature.dims["T"][1]
    if not all(1 <= count <= limit for count in counts):
        raise UsageError(
            f"chunks {','.join(map(str, counts))}: one call encodes 1 to {limit} chunks of 80 ms",
            field="chunks",
        )


def _batched(
    engine: Engine,
    constants: RealtimeConstants,
    settings: BenchSettings,
    prepared: Arrays | None,
    time: TimeSteps,
) -> list[Figures]:
    """Time per 80 ms with several chunks per encoder call, and the delay that they add."""
    rows = list[Figures]()
    for count in settings.counts:
        seconds, calls = time(engine.stream(), partial(_start_chunks, constants, count))
        rows.append(
            {
                "chunks": count,
                "step_ms": seconds * 1e3 / count,
                "added_delay_ms": (count - 1) * constants.seconds_per_token * 1e3,
                "median_ms": calls,
            }
        )
    return rows


def _start_chunks(constants: RealtimeConstants, count: int, stream: Stream) -> Callable[[], None]:
    return LiveWorkload(stream, constants, count).step


def _lines(result: Figures) -> list[str]:
    return [
        f"first token {result[FIRST_OUTPUT]:.2f} s after the start of a stream, with its silence",
        *(
            f"{row['chunks']} chunks per encoder call: {row['step_ms']:.1f} ms per 80 ms of audio, "
            f"{row['added_delay_ms']:.0f} ms more delay"
            for row in result["streams"]
        ),
    ]


BENCH = BenchWorkload[RealtimeConstants](
    first_output=FIRST_OUTPUT,
    options=("chunks",),
    voice=lambda bundle, constants: np.zeros((0, constants.dim), np.float32),
    rows_needed=lambda settings, steps: 0,
    check_counts=_check_counts,
    start=lambda stream, constants, settings, prepared: LiveWorkload(stream, constants),
    batched=_batched,
    lines=_lines,
)
