"""Traces: every intermediate value from samples to tokens. docs/runtime.md lists the arrays."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voxport.bundle.constants.voxtral_realtime import Constants
from voxport.runtime.engines.base import Arrays, Engine
from voxport.runtime.families.base import TraceWorkload
from voxport.runtime.families.voxtral_realtime.decoder import DecodeOptions, StreamingDecoder
from voxport.runtime.trace import ArraySpec


def _inputs(constants: Constants) -> dict[str, ArraySpec]:
    """`audio` float32 [n] at `sample_rate`; optionally `delay` int64 [1], a number in `delays_ms`."""
    return {"audio": ArraySpec((None,)), "delay": ArraySpec((1,), (len(constants.delays),), is_optional=True)}


def _run(
    engine: Engine, constants: Constants, inputs: Arrays, live: bool, tokenizer_files: Sequence[Path]
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


TRACE = TraceWorkload[Constants](_inputs, _run)
