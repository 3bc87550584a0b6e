"""espeak-ng through its C library: sound with the times of its words and phonemes."""

import ctypes
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LIBRARY = "libespeak-ng.so.1"  # Debian package libespeak-ng1
SYNCHRONOUS, PHONEME_EVENTS, IPA = 2, 1, 2  # arguments of espeak_Initialize
BUFFER_MS = 200
UTF8, CHARACTER_POSITIONS = 1, 1
RATE, PITCH = 1, 3  # parameters
WORD, PHONEME = 1, 7  # types of events
PAUSE = "_"
SAMPLE_RATE = 22050  # all formant voices have it


class _Name(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),  # characters before it, and one
        ("length", ctypes.c_int),
        ("milliseconds", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("name", _Name),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


@dataclass(frozen=True)
class Voice:
    """A voice of espeak-ng, its speed in words per minute, and its pitch from 0 to 99."""

    name: str = "en-us+f3"
    rate: int = 150
    pitch: int = 50


class Event(NamedTuple):
    """A word or a phoneme begins at `sample`. A word has the character offset of its text."""

    sample: int
    phoneme: str | None
    offset: int


@dataclass(frozen=True)
class Utterance:
    """Sound of a text: int16 [n] at `rate` samples per second.

    words: the samples at which each word of `text.split()` ends.
    phonemes: name and first sample of each, in order. Both are empty if the times are not known.
    """

    text: str
    samples: np.ndarray
    words: tuple[int, ...]
    phonemes: tuple[tuple[str, int], ...]
    rate: int = SAMPLE_RATE


class Espeak:
    """The synthesiser. A process has one, because the library has global state.

    The sound of a text depends on what was spoken before it. Equal calls in a new process give equal sounds.
    """

    def __init__(self) -> None:
        """Raises OSError if the library is not installed."""
        self._library, self._libc = ctypes.CDLL(LIBRARY), ctypes.CDLL(None)
        self._blocks: list[np.ndarray] = []
        self._events: list[Event] = []
        self._callback = _Callback(self._receive)  # the library keeps no reference
        self._library.espeak_Initialize(SYNCHRONOUS, BUFFER_MS, None, PHONEME_EVENTS | IPA)
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(self, text: str, voice: Voice) -> Utterance:
        """Raises ValueError on a voice that is not installed."""
        if self._library.espeak_SetVoiceByName(voice.name.encode()):
            raise ValueError(f"voice {voice.name!r}: espeak-ng has no such voice")
        self._library.espeak_SetParameter(RATE, voice.rate, 0)
        self._library.espeak_SetParameter(PITCH, voice.pitch, 0)
        self._blocks, self._events = [], []
        self._libc.srand(1)  # breath is noise of `rand`, which other libraries of the process may have called
        content = text.encode()
        self._library.espeak_Synth(content, len(content) + 1, 0, CHARACTER_POSITIONS, 0, UTF8, None, None)
        samples = np.concatenate(self._blocks) if self._blocks else np.zeros(0, np.int16)
        phonemes = tuple((event.phoneme, event.sample) for event in self._events if event.phoneme)
        return Utterance(text, samples, word_ends(text, self._events, len(samples)), phonemes)

    def _receive(
        self, samples: "ctypes._Pointer[ctypes.c_short]", count: int, events: "ctypes._Pointer[_Event]"
    ) -> int:
        if count > 0:
            self._blocks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while events[index].type:
            event = events[index]
            if event.type == PHONEME:
                name = event.name.string.decode() or PAUSE
                self._events.append(Event(event.sample, name, event.text_position - 1))
            elif event.type == WORD:
                self._events.append(Event(event.sample, None, event.text_position - 1))
            index += 1
        return 0


def word_ends(text: str, events: list[Event], length: int) -> tuple[int, ...]:
    """The sample at which each word of `text.split()` has ended.

    A word ends where the next event of a word begins, or at a pause before that. Words that espeak-ng speaks
    as one, `on the`, have one event: they end together. `length` is the number of samples.
    """
    starts = [event for event in events if event.phoneme is None]
    pauses = [event.sample for event in events if event.phoneme and event.phoneme.startswith(PAUSE)]
    ends = []
    offset = 0
    for word in text.split():
        offset = text.index(word, offset) + len(word)
        started = max((event.sample for event in starts if event.offset < offset), default=0)
        following = min((event.sample for event in starts if event.offset >= offset), default=length)
        ends.append(min((pause for pause in pauses if started < pause < following), default=following))
    return tuple(max(ends[: index + 1]) for index in range(len(ends)))


PHONEMES = (PAUSE, "other", *"abdefhijklmnoprstuvwxzæðŋɐɑɒɔəɚɛɜɡɪɬɹɾʃʊʌʒʔθᵻ")
_NUMBERS = {name: number for number, name in enumerate(PHONEMES)}
MARKS = "ˈˌː"
UNKNOWN = -100  # a target without a loss


def phoneme_classes(utterance: Utterance, times: np.ndarray) -> np.ndarray:
    """The number in `PHONEMES` of the sound at each of `times` (samples): a pause outside of the utterance.

    A name of several sounds, a diphthong, is divided into equal parts. Marks of stress and length have no
    class: the sound before them goes on. Without phonemes, all classes are `UNKNOWN`.
    """
    if not utterance.phonemes:
        return np.full(len(times), UNKNOWN)
    starts, classes = [0.0], [0]
    edges = [*(start for _, start in utterance.phonemes), len(utterance.samples)]
    for (name, start), end in zip(utterance.phonemes, edges[1:], strict=True):
        sounds = [each for each in name if each not in MARKS]
        starts += [start + (end - start) * part / len(sounds) for part in range(len(sounds))]
        classes += [_NUMBERS.get(sound, 1) for sound in sounds]
    found = np.array(classes)[np.searchsorted(starts, times, side="right").clip(1) - 1]
    return np.where((times < 0) | (times >= len(utterance.samples)), 0, found)
