"""Runs bundles of `--split six` through the calls of the other bundles.

A prompt is fed row by row. The code predictor runs one position at a call, and its codes are drawn here. The
speech decoder takes a fixed number of frames; longer speech is decoded in windows.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from voxport.bundle.constants.qwen3_tts import WINDOW_CONTEXT, QwenConstants
from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.spec import MASKED_SCORE, Kind, Signature, StateSpec, TensorSpec
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.sampler import SamplerSettings, sample

MASKS = ("key_padding_mask", "kv_cache_update_mask")
TALKER_CACHES = ("key_cache", "value_cache")  # [1, channels, 1, rows]
CALLED = ("prefill", "decode_step", "embed_text", "embed_codes", "code_predictor", "codec_step")
CODEC_FRAMES = "codec_frames"  # what `SplitStream` saves in place of states of a codec


def standard_stream(stream: Stream, constants: QwenConstants) -> Stream:
    """The stream itself, or for a bundle of `--split six` a `SplitStream`, which has the same calls."""
    return stream if "decode_step" in stream.signatures else SplitStream(stream, constants)


class SplitStream(Stream):
    """The calls in `CALLED` on a stream that has six other components. Other calls are passed on."""

    def __init__(self, stream: Stream, constants: QwenConstants):
        """Raises IntegrityError if the six components do not fit the constants."""
        self._rows, self._window = _check_shapes(stream.signatures, constants)
        super().__init__(
            stream.signatures | {"codec_step": _codec_step(constants, self._window)}, stream.lock
        )
        self._stream, self._constants = stream, constants
        self._frames: list[np.ndarray] = []  # codes int32 [K] of the utterance

    def run(self, component: str, inputs: Arrays) -> Arrays:
        match component:
            case "embed_text":
                return {"embeddings": self._embed("text_projector", inputs["ids"][0])[None]}
            case "embed_codes":
                frames = [self._frame_embedding(codes) for codes in inputs["codes"][0]]
                return {"embeddings": np.stack(frames)[None]}
            case "prefill" | "decode_step":
                return self._run_talker(inputs["embeddings"][0], int(inputs["position"][0]))
            case "code_predictor":
                return self._predict(inputs)
            case "codec_step":
                return {"audio": self._decode(inputs["codes"][0], int(inputs["position"][0]))[None]}
        return self._stream.run(component, inputs)

    def run_rows(self, component: str, inputs: Arrays) -> Arrays:
        """The calls in `CALLED` take any number of rows."""
        return self.run(component, inputs)

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        return self._stream.run(component, inputs)

    def _embed(self, component: str, ids: np.ndarray) -> np.ndarray:
        """ids [n] -> float32 [n, dim]"""
        inputs = [{"input_ids": np.array([each], np.int32)} for each in ids]
        return np.stack([self._stream.run(component, each)["input_embeds"].reshape(-1) for each in inputs])

    def _frame_embedding(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [K] -> float32 [dim], their sum; a code below 0 adds nothing."""
        size = self._constants.other_codes
        others = [code + size * book for book, code in enumerate(codes[1:]) if code >= 0]
        rows = [np.zeros((1, self._constants.dim), np.float32)]
        if codes[0] >= 0:
            rows.append(self._embed("code_embedder", codes[:1]))
        if others:
            rows.append(self._embed("multi_code_embedder", np.array(others)))
        total: np.ndarray = np.concatenate(rows).sum(axis=0)
        return total

    def _run_talker(self, rows: np.ndarray, position: int) -> Arrays:
        """Feeds rows float32 [n, dim] from `position` on."""
        if position < 0 or position + len(rows) > self._rows:
            raise UsageError(
                f"prompt: {len(rows)} rows at position {position} lie outside the cache of {self._rows}"
            )
        found = [self._step("code_decoder", row, position + n, self._rows) for n, row in enumerate(rows)]
        hidden = np.stack([outputs["hidden_states"].reshape(-1) for outputs in found])
        return {"hidden": hidden[None], "logits": found[-1]["logits"][0]}

    def _step(self, component: str, row: np.ndarray, position: int, count: int) -> Arrays:
        """One position of a decoder whose caches have `count` rows."""
        at = np.arange(count)[None]
        return self._stream.run(
            component,
            {
                "input_embeds": row.reshape(1, -1, 1, 1).astype(np.float32),
                "cache_length": np.array([position], np.int32),
                MASKS[0]: np.where(at <= position, 0, MASKED_SCORE).astype(np.float32),
                MASKS[1]: (at == position).astype(np.float32),
            },
        )

    def _predict(self, inputs: Arrays) -> Arrays:
        """The inputs and outputs of `code_predictor`."""
        books, size = self._constants.n_codebooks, self._constants.other_codes
        temperature, top_k, top_p = (float(inputs[name][0]) for name in ("temperature", "top_k", "top_p"))
        settings = SamplerSettings(temperature, int(top_k), top_p)
        codes = inputs["codes"][0].copy()
        self._step("multi_code_decoder", inputs["hidden"][0, 0], 0, books)
        row, logits = self._embed("code_embedder", codes[:1])[0], list[np.ndarray]()
        for book in range(1, books):
            outputs = self._step("multi_code_decoder", row, book, books)
            logits.append(outputs["all_logits"][0, book - 1])
            if codes[book] < 0:
                codes[book] = sample(logits[-1][None], settings, inputs["noise"][:, book - 1])[0]
            if book + 1 < books:
                row = self._embed("multi_code_embedder", codes[book : book + 1] + size * (book - 1))[0]
        return {"chosen": codes[None], "logits": np.stack(logits)[None]}

    def _decode(self, codes: np.ndarray, position: int) -> np.ndarray:
        """codes int64 [n, K] of the next frames -> samples float32 [n * samples of a frame].

        The windows of an utterance do not depend on how many frames a call has.
        """
        if position > len(self._frames):
            raise UsageError(f"codec: position {position}, the utterance has {len(self._frames)} frames")
        self._frames[position:] = list(codes.astype(np.int32))
        samples, pieces, end = self._constants.samples_per_frame, list[np.ndarray](), len(self._frames)
        starts = [0, *range(self._window, end, self._window - WINDOW_CONTEXT)]
        while position < end:
            index = bisect_right(starts, position) - 1
            start = max(starts[index] - WINDOW_CONTEXT, 0)
            stop = min(start + self._window, end)
            window = np.zeros((1, self._constants.n_codebooks, self._window), np.int32)
            window[0, :, : stop - start] = np.stack(self._frames[start:stop]).T
            audio = self._stream.run("speech_decoder", {"audio_codes": window})["audio"][0]
            pieces.append(audio[(position - start) * samples : (stop - start) * samples])
            position = stop
        return np.concatenate(pieces)

    def capacity(self, component: str) -> int:
        return self._rows if component in CALLED else self._stream.capacity(component)

    def slot(self, index: int) -> Stream:
        return self

    def reset(self) -> None:
        self._frames = []
        self._stream.reset()

    def save(self, component: str | None = None, positions: int | None = None) -> Arrays:
        if component == "codec_step":
            return {CODEC_FRAMES: np.stack(self._frames[:positions])}
        if component not in CALLED:
            return self._stream.save(component, positions)
        rows = self._stream.save("code_decoder")
        return {name: rows[name][..., :positions].copy() for name in TALKER_CACHES}

    def load(self, states: Arrays) -> None:
        """Rows of the talker's caches are at the end of their last axis."""
        whole = self._stream.save()
        for name, array in states.items():
            if name == CODEC_FRAMES:
                self._frames = list(array)
            else:
                whole[name][tuple(map(slice, array.shape))] = array
        self._stream.load(whole)

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        return self._stream._save(states, positions)

    def _load(self, states: Arrays) -> None:
        self._stream.load(states)


def _check_shapes(signatures: Mapping[str, Signature], constants: QwenConstants) -> tuple[int, int]:
    """Rows of the talker's caches, and frames of a call of the speech decoder. Raises IntegrityError."""
    shapes = {
        (name, spec.name): spec.shape
        for name, signature in signatures.items()
        for spec in (*signature.inputs, *signature.outputs)
    }
    books = constants.n_codebooks
    rows, window = shapes["code_decoder", MASKS[0]][-1], shapes["speech_decoder", "audio_codes"][-1]
    if not isinstance(rows, int) or not isinstance(window, int) or window <= WINDOW_CONTEXT:
        raise IntegrityError(
            f"manifest.json: a cache of {rows} rows and windows of {window} frames, expected numbers, and "
            f"windows of more than {WINDOW_CONTEXT}; export the bundle again"
        )
    expected = {
        ("speech_decoder", "audio_codes"): (1, books, window),
        ("speech_decoder", "audio"): (1, window * constants.samples_per_frame),
        ("code_decoder", "logits"): (1, 1, constants.vocab_size),
        ("code_decoder", "hidden_states"): (1, constants.dim, 1, 1),
        ("multi_code_decoder", "all_logits"): (1, books - 1, constants.other_codes),
    }
    for key, shape in expected.items():
        if shapes[key] != shape:
            raise IntegrityError(
                f"manifest.json: component {key[0]}: {key[1]} has shape {list(shapes[key])}, "
                f"expected {list(shape)}; export the bundle again"
            )
    return rows, window


def _codec_step(constants: QwenConstants, window: int) -> Signature:
    shape = (1, f"{constants.samples_per_frame}*T")
    return Signature(
        inputs=(TensorSpec("codes", "int64", (1, "T", constants.n_codebooks), Kind.INDEX),),
        outputs=(TensorSpec("audio", "float32", shape, Kind.AUDIO),),
        dims={"T": (1, window)},
    )
