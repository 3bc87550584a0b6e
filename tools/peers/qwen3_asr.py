"""A recording with Qwen3-ASR 0.6B, by voxport or by CrispASR: noise, and as many tokens as speech has.

    python -m tools.peers.qwen3_asr "qwen3-asr-0.6b, onnx-w4" BUNDLE
    python -m tools.peers.qwen3_asr "qwen3-asr-0.6b, crispasr Q4_0" MODEL.gguf

CrispASR's package (`pip install crispasr`) is called by its C functions. Its repository has the converter to
GGUF; linears were then quantised with the package `gguf`: the decoder to Q4_0, all others to Q8_0.
antirez/qwen-asr was run as `qwen_asr -d CHECKPOINT -i NOISE.wav -t 2 --debug`, with at most 40 tokens.
"""

import argparse
import ctypes
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tools.figures import Row, conditions, put

SECONDS, TOKENS_PER_SECOND, STEPS = 120, 3.3, 20
PROMPT_ROWS = 20  # beside the sound
MEL_RATE, MELS, ROWS_PER_SECOND, THREADS = 100, 128, 13, 2
SPREAD = 0.03  # of embeddings
Call = Callable[[np.ndarray, int], object]  # embeddings [n, dim] at a position
Program = tuple[Callable[[np.ndarray], int], Call]  # encodes mel [frames, mels] to rows, reads embeddings


def of_voxport(path: Path) -> Program:
    from voxport.bundle.manifest import Bundle
    from voxport.runtime.engines import open_engine
    from voxport.runtime.engines.base import EngineOptions
    from voxport.runtime.families import read_constants
    from voxport.runtime.families.qwen3_asr.encoder import SoundEncoder

    bundle = Bundle(path)
    stream, constants = (
        open_engine(bundle, EngineOptions(threads=THREADS)).stream(),
        read_constants(bundle.job),
    )

    def read(rows: np.ndarray, position: int) -> object:
        name = "decode_step" if len(rows) == 1 else "prefill"
        return stream.run_rows(name, {"embeddings": rows[None], "position": np.array([position])})

    return lambda mel: len(SoundEncoder(stream, constants).encode(mel)), read


class _Parameters(ctypes.Structure):
    _fields_ = (
        ("threads", ctypes.c_int),
        ("verbosity", ctypes.c_int),
        ("gpu", ctypes.c_bool),
        ("flash_attention", ctypes.c_bool),
    )


def of_crispasr(path: Path) -> Program:
    spec = find_spec("crispasr")
    assert spec and spec.origin
    library = ctypes.CDLL(str(Path(spec.origin).with_name("libcrispasr.so")))
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    for name in ("init_from_file", "run_encoder", "run_llm_kv"):
        getattr(library, f"qwen3_asr_{name}").restype = ctypes.c_void_p
    library.qwen3_asr_context_default_params.restype = _Parameters
    parameters = library.qwen3_asr_context_default_params()
    parameters.threads, parameters.verbosity, parameters.gpu = THREADS, 0, False
    context = ctypes.c_void_p(library.qwen3_asr_init_from_file(str(path).encode(), parameters))
    library.qwen3_asr_kv_init(context, 4096)
    library.qwen3_asr_kv_reset(context)
    counts = ctypes.c_int(), ctypes.c_int()
    out = [ctypes.byref(count) for count in counts]

    def encode(mel: np.ndarray) -> int:
        values = np.ascontiguousarray(mel.T)
        free(
            library.qwen3_asr_run_encoder(
                context, values.ctypes.data_as(ctypes.c_void_p), MELS, len(mel), *out
            )
        )
        return counts[0].value

    def read(rows: np.ndarray, position: int) -> object:
        values = np.ascontiguousarray(rows).ctypes.data_as(ctypes.c_void_p)
        return free(library.qwen3_asr_run_llm_kv(context, values, len(rows), position, *out))

    return encode, read


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measured(name: str, program: Program, dim: int = 1024) -> Row:
    encode, read = program
    noise, found = np.random.default_rng(0), list[int]()
    mel = noise.standard_normal((SECONDS * MEL_RATE, MELS)).astype(np.float32)
    encode(mel[: 8 * MEL_RATE])  # opens what is not open yet
    encoder = timed(lambda: found.append(encode(mel)))
    assert found[0] == SECONDS * ROWS_PER_SECOND, f"{found[0]} rows of sound"
    rows = (noise.standard_normal((found[0] + PROMPT_ROWS, dim)) * SPREAD).astype(np.float32)
    prefill = timed(lambda: read(rows, 0))
    steps = [timed(partial(read, rows[:1], len(rows) + step)) for step in range(STEPS)]
    token = statistics.median(steps)
    return {
        "id": name,
        "encoder_s": f"{encoder:.1f}",
        "prefill_s": f"{prefill:.1f}",
        "token_ms": f"{token * 1e3:.0f}",
        "recording_s": f"{encoder + prefill + token * SECONDS * TOKENS_PER_SECOND:.0f}",
        "memory_gb": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f}",
        **conditions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("id", help="name of the row in docs/figures/peers.csv")
    parser.add_argument("model", type=Path, help="a bundle, or a GGUF file")
    arguments = parser.parse_args()
    opened = (of_voxport if arguments.model.is_dir() else of_crispasr)(arguments.model)
    put("peers", [measured(arguments.id, opened)])


if __name__ == "__main__":
    main()
