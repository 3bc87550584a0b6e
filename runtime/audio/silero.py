"""`SpeechProbability`: the voice activity model of Silero in numpy, which needs no engine.

`silero_vad.safetensors` has the weights of `silero_vad_16k_op15.onnx` from the package silero-vad 6.2.3 (MIT
License, Copyright (c) 2020-present Silero Team) as float16.
"""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

RATE, CHUNK = 16000, 512  # samples per second, and for one probability
_CONTEXT, _WINDOW, _HOP, _HIDDEN = 64, 256, 128, 128
_STRIDES = (1, 2, 2, 1)  # of the convolutions
_WEIGHTS = Path(__file__).with_name("silero_vad.safetensors")


class SpeechProbability:
    """The probability of speech in each 32 ms of one stream."""

    def __init__(self) -> None:
        self._context = np.zeros(_CONTEXT, np.float32)  # the samples before the next chunk
        self._output, self._cell = np.zeros((2, _HIDDEN), np.float32)  # of the LSTM

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """samples float32 [n * CHUNK] in [-1, 1] at `RATE`, n at least 1 -> probabilities float32 [n]."""
        weights, stream = _weights(), np.concatenate((self._context, samples))
        self._context = stream[-_CONTEXT:]
        chunks = sliding_window_view(stream, _CONTEXT + CHUNK)[::CHUNK]  # [n, 576]
        inputs = _features(chunks) @ weights["input.weight"] + weights["hidden.bias"]  # [n, 4 * _HIDDEN]
        outputs = np.stack([self._step(each, weights["hidden.weight"]) for each in inputs])  # [n, _HIDDEN]
        return _sigmoid(np.maximum(outputs, 0) @ weights["output.weight"] + weights["output.bias"])

    def _step(self, inputs: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """A step of the LSTM: its inputs float32 [4 * _HIDDEN] -> its output float32 [_HIDDEN]."""
        gates = (inputs + weight @ self._output).reshape(4, _HIDDEN)
        take, keep, _, show = _sigmoid(gates)
        self._cell = keep * self._cell + take * np.tanh(gates[2])
        self._output = show * np.tanh(self._cell)
        return self._output


@cache
def _weights() -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return {name: weight.astype(np.float32) for name, weight in load_file(_WEIGHTS).items()}


def _features(chunks: np.ndarray) -> np.ndarray:
    """float32 [n, 576] -> [n, _HIDDEN]: the magnitudes of a short-time Fourier transform, convolved."""
    reflected = chunks[:, -2 : -2 - _CONTEXT : -1]
    frames = sliding_window_view(np.hstack((chunks, reflected)), _WINDOW, 1)[:, ::_HOP]  # [n, 4, 256]
    window = np.hanning(_WINDOW + 1)[:-1]
    values = np.abs(np.fft.rfft(frames * window)).astype(np.float32)  # [n, 4, 129]
    for number, stride in enumerate(_STRIDES):
        values = _convolved(values, f"conv{number}", stride)
    return values[:, 0]


def _convolved(values: np.ndarray, name: str, stride: int) -> np.ndarray:
    """A convolution of width 3 over t, and its positive part: [n, t, c] -> [n, t / stride, d]."""
    count, length, channels = values.shape
    padded = np.zeros((count, length + 2, channels), np.float32)
    padded[:, 1:-1] = values
    windows = sliding_window_view(padded, 3, 1)[:, ::stride]  # [n, t / stride, c, 3]
    flat = windows.reshape(count, -1, 3 * channels) @ _weights()[f"{name}.weight"]
    return np.asarray(np.maximum(flat + _weights()[f"{name}.bias"], 0))


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * values), np.float32)
