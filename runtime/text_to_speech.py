"""`TextToSpeech`: the task that a text-to-speech family implements."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.bundle.names import did_you_mean
from voxport.runtime.batching import BatchedDecoder, SlotDecoder, Status, Ticket
from voxport.runtime.speech_request import (
    DEFAULT_SLOTS,
    PartOptions,
    SpeechOptions,
    SpeechRequest,
    TextLayout,
    is_number,
)
from voxport.runtime.text.languages import check_language, readable_parts
from voxport.runtime.text.markup import PAUSE
from voxport.runtime.text.preparation import USUAL, NothingToSpeak, TextRules, prepare

DEFAULT_PAUSE_S, MAX_PAUSE_S = 0.2, 10.0
WORDLESS_S = 0.08  # of silence for a text without a word
LINE_BREAKS = "\n", "\r"
CHECKPOINT = "model"  # key of the metadata of voice files
MAX_PART_CHARACTERS = 300  # in a part of a text: about 16 s of speech
log = logging.getLogger(__name__)


class Speech:
    """A text that is spoken part by part.

    `status` says why it ended: END, or the first other reason of a part.
    """

    def __init__(
        self,
        task: "TextToSpeech",
        text: str | Iterable[str],
        language: str | None = None,
        verbatim: bool = False,
        lines: bool = False,
        pause: float = DEFAULT_PAUSE_S,
        max_frames: int | None = None,
        **options: Unpack[PartOptions],
    ):
        """Raises UsageError that names the wrong option, TypeError for an unknown one."""
        for name in options.keys() - PartOptions.__annotations__.keys():
            close = did_you_mean(name, SpeechOptions.__annotations__)
            raise TypeError(f"speak() has no option {name!r}{close}")
        if not isinstance(text, Iterable) or isinstance(text, bytes):
            raise UsageError(f"text {text!r}: expected a str or pieces of text", field="text")
        code = None if language is None else task.check_language(language)
        if not is_number(pause) or not 0 <= pause <= MAX_PAUSE_S:
            raise UsageError(f"pause {pause!r}: expected 0 to {MAX_PAUSE_S:g} seconds", field="pause")
        self._request = SpeechRequest("", language=language, **options)
        if self._request.sampling:
            task.check_sampling(self._request.sampling)
        if self._request.text_layout:
            task.check_text_layout(self._request.text_layout)
        if max_frames is not None:
            replace(self._request, max_frames=max_frames)  # is checked
        fits_prompt = task.fits_prompt(self._request.voice, self._request.instruct)
        fits: Callable[[str], bool] = lambda part: len(part) <= MAX_PART_CHARACTERS and fits_prompt(part)
        if isinstance(text, str) and text.startswith(LINE_BREAKS):
            log.info("text: the line breaks at its beginning are not spoken; they are left out")
        spoken = code or task.language(self._request.voice)
        rules = replace(task.text_rules, by_line=lines)
        parts: Callable[[], Iterator[str]] = lambda: prepare(text, spoken, fits, verbatim, rules)
        self._parts = readable_parts(text, parts, task.languages)
        self._left = math.inf if max_frames is None else max_frames
        self._samples_per_frame = task.samples_per_frame
        self._pause, self._next_pause, self._rate = pause, 0.0, task.sample_rate
        self.part = ""  # the text that `next_part` returned
        self.silence = np.zeros(0, np.float32)  # samples [n] before it
        self.status = Status.END

    def next_part(self) -> SpeechRequest | None:
        """The next part; at the end None, with the pauses behind the last part in `silence`.

        Raises UsageError if the text is wrong, and NothingToSpeak if it has no word; `silence` may then be
        played in its place.
        """
        asked, part = 0.0, None
        try:
            for part in self._parts if self._left else ():
                if not part.startswith(PAUSE):
                    break
                asked, part = asked + int(part[1:]) / 1000, None
        except NothingToSpeak:
            self._set_silence(max(asked, WORDLESS_S))
            raise
        self._set_silence(asked or (self._next_pause if part else 0.0))
        self.part, self._next_pause = part or "", self._pause
        limit = min(self._left, self._request.max_frames)
        return None if part is None else replace(self._request, text=part, max_frames=int(limit))

    def _set_silence(self, seconds: float) -> None:
        if seconds > MAX_PAUSE_S:
            log.warning("a pause of %g s: at most %g s are spoken", seconds, MAX_PAUSE_S)
        self.silence = np.zeros(round(min(seconds, MAX_PAUSE_S) * self._rate), np.float32)

    def take(self, samples: np.ndarray) -> np.ndarray:
        """Counts samples float32 [n] of a part and returns them."""
        self._left -= len(samples) // self._samples_per_frame
        return samples

    def end_part(self, status: Status) -> None:
        """Takes the final status of a part."""
        if self.status == Status.END:
            self.status = status


@contextmanager
def _with_text_index(index: int) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(f"text {index}: {error}", field=error.field) from None


def _check_options(options: object) -> None:
    """Raises UsageError unless they are a dict with names of `SpeechOptions`."""
    known = SpeechOptions.__annotations__
    wrong = map(str, options.keys() - known.keys()) if isinstance(options, dict) else [repr(options)]
    if names := ", ".join(sorted(wrong)):
        raise UsageError(f"options {names}: expected a dict with some of {', '.join(known)}")


class TextToSpeech(ABC):
    """Speaks texts from one bundle.

    Calls from several threads are safe; each request has a stream or a slot of its own.
    """

    follows_instructions = False  # whether `instruct` of a request changes its speech
    languages: tuple[str, ...] = ()  # ISO 639 codes that the model speaks; empty if not known
    end_code: int  # first code of the frame with which the model ends the speech; it has no samples

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """Samples per second of the speech."""

    @property
    def text_rules(self) -> TextRules:
        """Rules of the model for its texts."""
        return USUAL

    @property
    @abstractmethod
    def max_slots(self) -> int:
        """Requests that one call of the engine can serve; 1 if the engine does not batch."""

    def open_files(self) -> None:  # noqa: B027  optional
        """Opens all files of the bundle and waits. Raises VoxportError."""

    @abstractmethod
    def voices(self) -> dict[str, int]:
        """Names of the voices, the bundle's and the user's, and the prompt rows of each."""

    def bundle_voices(self) -> list[str]:
        """Names of the bundle's own voices, which anyone may use. Reads no voice file."""
        return list(self.voices())

    def default_bundle_voice(self) -> str | None:
        """The voice of the bundle that speaks if none is named; None if the model chooses one.

        Raises UsageError if a voice must be named.
        """
        return None

    @abstractmethod
    def slot_decoder(self, slots: int) -> SlotDecoder[SpeechRequest]:
        """The operations on `slots` slots. Raises UsageError above `max_slots`."""

    def batched(self, slots: int) -> BatchedDecoder[SpeechRequest]:
        """A decoder for up to `slots` concurrent requests. Raises UsageError above `max_slots`."""
        return BatchedDecoder(self.slot_decoder(slots))

    @property
    @abstractmethod
    def samples_per_frame(self) -> int:
        """Samples of a frame."""

    @abstractmethod
    def estimated_frames(self, text: str) -> float:
        """Frames that the speech of a text usually takes."""

    def estimated_seconds(self, text: str) -> float:
        """About as long as the speech of `text` is."""
        return self.estimated_frames(text) * self.samples_per_frame / self.sample_rate

    def check_sampling(self, sampling: Mapping[str, float]) -> None:
        """Raises UsageError that names a setting of `SAMPLING` that the model does not take.

        `sampling` has one at least.
        """
        name = next(iter(sampling))
        raise UsageError(f"{name}: this model draws no codes; leave out the setting", field=name)

    def check_text_layout(self, layout: TextLayout) -> None:
        """Raises UsageError if the model has one layout of texts only."""
        raise UsageError("text_layout: this model has one layout; leave it out", field="text_layout")

    def code_sizes(self) -> tuple[int, ...]:
        """Number of values of each code of a frame."""
        raise UsageError("codec: this model has no codes that samples can be made from")

    def encode(self, recording: Path) -> np.ndarray:
        """An audio file -> codes int64 [T, K]. Raises UsageError, also if the model has no encoder."""
        raise UsageError("codec: this model has no encoder of recordings; it can only decode")

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [T, K] -> samples float32 [T * samples_per_frame].

        Raises UsageError on codes that the model does not have, and above an hour.
        """
        raise UsageError("codec: this model has no codes that samples can be made from")

    def language(self, voice: str | None) -> str:
        """ISO 639 code of the language of a voice by name or file (None: the bundle's default)."""
        return "en"

    def check_language(self, language: str) -> str | None:
        """ISO 639 code of the language of a request; None if the clean-up takes the language of the voice.

        Raises UsageError, which lists the languages, on one that the model does not speak.
        """
        return check_language(language, self.languages)

    def voice_checkpoint(self) -> str | None:
        """The checkpoint whose voices the model takes, as in a voice file's metadata; None without voices."""
        return None

    def check_cloning(self) -> None:
        """Raises UsageError if the model makes no voices from recordings."""
        raise self._cloning_unsupported()

    def voice_path(self, name: str) -> Path:
        """The path of a voice of this name of the user. Raises UsageError if the model clones none."""
        raise self._cloning_unsupported()

    def make_voice(self, recording: Path, transcript: str | None = None) -> bytes:
        """The content of a voice file, from an audio file. Raises UsageError."""
        raise self._cloning_unsupported()

    def neutral_voice(self) -> bytes:
        """The content of a voice file that is nobody's voice. Raises UsageError."""
        raise self._cloning_unsupported()

    def import_voice(self, path: Path) -> bytes:
        """The content of a voice file, from a voice that another program wrote. Raises UsageError."""
        raise self._cloning_unsupported()

    def blend_voices(self, weights: Mapping[str, float]) -> bytes:
        """The content of a voice file: the weighted mean of voices by name or file. Raises UsageError."""
        raise self._cloning_unsupported()

    def _cloning_unsupported(self) -> UsageError:
        return UsageError(
            "voice: this model makes no voices; `voxport voice list --bundle DIR` shows its own"
        )

    def fits_prompt(self, voice: str | None, instruct: str | None = None) -> Callable[[str], bool]:
        """A function that returns whether a text and its speech fit the cache, with voice and instruction.

        Raises UsageError on an unknown voice, or if the two leave no room.
        """
        return lambda text: True

    def speak(
        self, text: str | Iterable[str], **options: Unpack[SpeechOptions]
    ) -> Generator[np.ndarray, None, Status]:
        """Yields float32 samples [n] in order; returns why the speech ended.

        `text` may be pieces of text that arrive while it speaks. It is spoken in parts of one or several
        sentences. Raises UsageError before the first samples, or if a later piece is wrong.
        """
        speech = Speech(self, text, **options)
        for _, samples in self._run([speech], 1):
            yield samples
        return speech.status

    def speak_all(
        self,
        texts: Sequence[str],
        slots: int = DEFAULT_SLOTS,
        options_of_each: Sequence[SpeechOptions] = (),
        **options: Unpack[SpeechOptions],
    ) -> Generator[tuple[int, np.ndarray], None, list[Status]]:
        """Yields (index of a text, float32 samples [n]); the samples of one text come in order. Returns why
        each speech ended.

        `options` are for all texts. `options_of_each`, one dict per text, replace some of them.
        Up to `slots` texts share each pass over the weights if the engine batches (ONNX); else texts are
        spoken one after another. The samples equal the samples of `speak` up to the order of float additions.
        Raises UsageError before the first samples.
        """
        if isinstance(texts, str) or not texts:
            raise UsageError(f"speak_all: {'one str' if texts else 'no text'}; expected a list of texts")
        if slots < 1:
            raise UsageError(f"speak_all: slots {slots}: expected at least 1")
        own = options_of_each or [SpeechOptions()] * len(texts)
        if len(own) != len(texts):
            raise UsageError(f"speak_all: {len(texts)} texts, but options_of_each has {len(own)}")
        speeches = []
        for index, (text, changes) in enumerate(zip(texts, own, strict=True)):
            with _with_text_index(index):
                _check_options(changes)
                speeches.append(Speech(self, text, **(options | changes)))
        yield from self._run(speeches, min(slots, len(texts)))
        return [speech.status for speech in speeches]

    def _run(self, speeches: Sequence[Speech], slots: int) -> Iterator[tuple[int, np.ndarray]]:
        """Parts of one speech run one after another, parts of several speeches at the same time."""
        decoder = self.batched(min(slots, self.max_slots))
        running: dict[Ticket, int] = {}

        def start(index: int) -> tuple[int, np.ndarray]:
            request = speeches[index].next_part()
            if request:
                running[decoder.submit(request)] = index
            return index, speeches[index].silence

        pauses = list[tuple[int, np.ndarray]]()
        for index in range(len(speeches)):
            with _with_text_index(index) if len(speeches) > 1 else nullcontext():
                pauses.append(start(index))
        yield from (pause for pause in pauses if len(pause[1]))
        while running:
            for ticket, samples in decoder.step():
                index = running[ticket]
                if samples is not None:
                    yield index, speeches[index].take(samples)
                if ticket.is_done:
                    del running[ticket]
                    if ticket.error:
                        raise ticket.error
                    speeches[index].end_part(ticket.status)
                    if len((pause := start(index))[1]):
                        yield pause
