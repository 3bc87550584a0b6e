"""Fixed runs on noise, which verification compares between two streams."""

from itertools import chain, islice

import numpy as np

from voxport.bundle.constants.voxtral_realtime import Constants
from voxport.runtime.engines.base import Stream
from voxport.runtime.families.base import ForcedRun, VerificationWorkload
from voxport.runtime.families.voxtral_realtime.decoder import DecodeOptions, StreamingDecoder

NOISE_LEVEL = 0.1  # standard deviation


def teacher_forced_run(
    stream: Stream, constants: Constants, steps: int, forced: np.ndarray | None = None
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


def free_run(stream: Stream, constants: Constants, steps: int) -> np.ndarray:
    """The tokens of a free run: int64 [steps]."""
    return teacher_forced_run(stream, constants, steps).codes[:, 0]


def compare(found: np.ndarray, expected: np.ndarray, constants: Constants) -> dict[str, float]:
    """The number of tokens, and the fraction of equal ones."""
    return {"tokens": float(len(found)), "tokens_equal": float((found == expected).mean())}


VERIFICATION = VerificationWorkload[Constants](
    teacher_forced_run,
    free_run,
    compare,
)
