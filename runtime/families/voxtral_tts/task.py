"""The Voxtral-TTS family: voices, prompts, and text to speech.

The rows of a voice are input embeddings. They replace the [AUDIO] ids of the prefix that all prompts of the
voice share.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from voxport.bundle.bounds import MAX_VOICE_BYTES, MAX_VOICE_ROWS
from voxport.bundle.constants.voxtral_tts import END_AUDIO, LANGUAGES, VoxtralConstants
from voxport.bundle.errors import IntegrityError, UsageError, VoxportError
from voxport.bundle.manifest import VOICE_KEY, Bundle
from voxport.bundle.names import find_name
from voxport.bundle.tekken import SPEECH_MARKERS, load_tekken, special_id, tekken_path
from voxport.runtime.audio.files import SOUNDS
from voxport.runtime.batching import Fill, RowLimit, max_slots
from voxport.runtime.engines.base import Engine, Stream
from voxport.runtime.families import Call, RuntimeFamily, parse_constants, tokenizer_paths
from voxport.runtime.families.voxtral_tts.decoder import BATCHED, FRAME_LOOP, VoxtralDecoder, VoxtralPrompt
from voxport.runtime.prefix_cache import PrefixCache
from voxport.runtime.speech_decoder import StoredPrefix, check_room, read_prompt
from voxport.runtime.speech_request import SpeechRequest
from voxport.runtime.text.cleanup import MAX_TEXT_CHARACTERS, check_text
from voxport.runtime.text.preparation import TextRules
from voxport.runtime.text_to_speech import TextToSpeech
from voxport.runtime.utterance import UtteranceSlots

DEFAULT_VOICE = "neutral_female"
DTYPES = ("F32", "F16", "BF16")  # as safetensors names them
FRAMES_PER_CHARACTER = 0.68  # English speech, published for Voxtral-TTS
SLOWEST = 1.3  # speech of this many times its usual length must fit the cache
SMALL_VOCABULARY = 10_000  # the published one has 131,072
BACKBONE = Call(frozenset({"embeddings", "position"}), frozenset({"hidden", "semantic_logits", "condition"}))


def choose_voice(bundle: Bundle, name: str | None, dim: int) -> np.ndarray:
    """Rows float32 [N, dim] of a voice by name or file. Raises UsageError that lists the voices."""
    names = list(bundle.manifest.voices)
    name = find_name(name or default_voice(bundle), names)
    if name in names:
        return read_voice(bundle.folder / bundle.manifest.voices[name], dim)
    path = Path(name)
    if path.suffix.lower() in SOUNDS:
        raise UsageError(
            f"voice {name}: a voice cannot be cloned from audio, because the published checkpoint has no "
            f"codec encoder; give one of {', '.join(names)}",
            field="voice",
        )
    if path.suffix == ".safetensors":
        try:
            return read_voice(path, dim)
        except IntegrityError as error:
            raise UsageError(f"voice {error}", field="voice") from None
    listed = ", ".join(names) or "none in this bundle"
    raise UsageError(f"voice {name}: unknown voice; there are {listed}", field="voice")


def language_of_voice(bundle: Bundle, voice: str | None) -> str:
    """ISO 639 code of the language that the name of a published voice begins with, as in fr_male."""
    language = Path(voice or default_voice(bundle)).name.lower().partition("_")[0]
    return language if language in LANGUAGES else "en"


def count_rows(bundle: Bundle, dim: int) -> dict[str, int]:
    """Rows of each of the bundle's own voices. Raises IntegrityError."""
    return {name: len(read_voice(bundle.folder / path, dim)) for name, path in bundle.manifest.voices.items()}


def default_voice(bundle: Bundle) -> str:
    """Raises UsageError if the bundle has no voice."""
    names = list(bundle.manifest.voices)
    if not names:
        raise UsageError(
            f"voice: {bundle.folder} has none; give a voice FILE.safetensors with key {VOICE_KEY!r}",
            field="voice",
        )
    return DEFAULT_VOICE if DEFAULT_VOICE in names else names[0]


def read_voice(path: Path, dim: int) -> np.ndarray:
    """Rows float32 [N, dim] of a voice file in float32, float16 or bfloat16.

    Raises IntegrityError on any other file.
    """
    if not path.is_file():  # opening a pipe would wait for ever
        raise IntegrityError(f"{path}: not a file; give a voice FILE.safetensors with key {VOICE_KEY!r}")
    if (size := path.stat().st_size) > MAX_VOICE_BYTES:
        raise IntegrityError(f"{path}: {size} bytes, expected at most {MAX_VOICE_BYTES} for a voice")
    try:
        tensors = dict(deserialize(path.read_bytes()))
    except (OSError, SafetensorError, ValueError) as error:
        raise IntegrityError(f"{path}: not a readable safetensors file ({error})") from None
    if VOICE_KEY not in tensors:
        raise IntegrityError(f"{path}: key {VOICE_KEY!r}: no such key; expected float32 [N, {dim}]")
    dtype, shape = tensors[VOICE_KEY]["dtype"], tensors[VOICE_KEY]["shape"]
    fits = len(shape) == 2 and shape[1] == dim and 1 <= shape[0] <= MAX_VOICE_ROWS
    if not fits or dtype not in DTYPES:
        raise IntegrityError(
            f"{path}: key {VOICE_KEY!r}: {dtype} {shape}; "
            f"expected {', '.join(DTYPES)} [N, {dim}] with 1 to {MAX_VOICE_ROWS} rows"
        )
    rows = _to_float32(tensors[VOICE_KEY]["data"], dtype).reshape(shape)
    if not np.isfinite(rows).all():
        raise IntegrityError(f"{path}: key {VOICE_KEY!r} holds values that are not finite")
    return rows


def _to_float32(data: bytes, dtype: str) -> np.ndarray:
    if dtype == "BF16":  # NumPy has no bfloat16: the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)


def estimated_frames(text: str) -> float:
    """Frames that the speech of a text usually takes."""
    return FRAMES_PER_CHARACTER * len(text)


class SpeechTokenizer:
    """The byte-pair tokenizer of a tekken.json and its speech markers.

    `voice_prefix` + `encode` equal mistral_common's `encode_speech_request`, except that the number of
    [AUDIO] placeholders is the number of voice rows, not the number that tekken.json lists for the voice.
    """

    def __init__(self, path: Path):
        """Raises IntegrityError on a missing or broken file, the older bare-array form, or a missing speech
        marker.
        """
        self._tekken = load_tekken(path)
        self._begin, self._audio, self._begin_audio, self._before_text, self._after_text = (
            special_id(self._tekken, marker, path) for marker in SPEECH_MARKERS
        )

    def voice_prefix(self, rows: int) -> list[int]:
        """[BOS] [BEGIN_AUDIO], an [AUDIO] for each voice row, [NEXT_AUDIO_TEXT].

        Raises VoxportError without a row.
        """
        if rows < 1:
            raise VoxportError(
                f"a voice of {rows} rows cannot start a prompt; expected at least 1 row, name another voice"
            )
        return [self._begin, self._begin_audio, *[self._audio] * rows, self._before_text]

    def encode(self, text: str) -> list[int]:
        """The ids of the text, [REPEAT_AUDIO_TEXT] [BEGIN_AUDIO]. Markers in `text` are read as text.

        Raises UsageError on a text that is too long to tokenize.
        """
        if len(text) > MAX_TEXT_CHARACTERS:
            raise UsageError(
                f"the text has {len(text)} characters, expected at most {MAX_TEXT_CHARACTERS}; split it"
            )
        return [*self._tekken.encode(text, bos=False, eos=False), self._after_text, self._begin_audio]


def open_tokenizer(paths: Sequence[Path]) -> SpeechTokenizer:
    """Raises IntegrityError."""
    return SpeechTokenizer(tekken_path(paths))


class PromptBuilder:
    """Builds prompts for one bundle."""

    def __init__(self, bundle: Bundle, tokenizer: SpeechTokenizer, constants: VoxtralConstants):
        self._bundle, self._tokenizer, self._constants = bundle, tokenizer, constants
        self._capacity = bundle.component("decode_step").signature.capacity or 0

    def fits_prompt(self, voice: str | None) -> Callable[[str], bool]:
        """A function that returns whether the prompt of a text and its speech, also slow, fit the cache.

        Raises UsageError on an unknown voice.
        """
        rows = len(choose_voice(self._bundle, voice, self._constants.dim))
        fixed = len(self._tokenizer.voice_prefix(rows)) + len(self._constants.extra_ids)

        def fits(text: str) -> bool:
            frames = math.ceil(SLOWEST * estimated_frames(text))
            return fixed + len(self._tokenizer.encode(text)) + frames <= self._capacity

        return fits

    def build(self, request: SpeechRequest) -> VoxtralPrompt:
        """Raises UsageError on a text, voice or length that the bundle cannot speak."""
        text = check_text(request.text)
        if request.instruct:
            raise UsageError("instruct: this model takes no instruction; leave it out", field="instruct")
        if request.sampling:
            raise UsageError("sampling: this model draws no codes; leave it out", field="sampling")
        if request.text_layout:
            raise UsageError("text_layout: this model has one layout; leave it out", field="text_layout")
        voice = choose_voice(self._bundle, request.voice, self._constants.dim)
        prefix, ids = self._tokenizer.voice_prefix(len(voice)), self._tokenizer.encode(text)
        highest, size = max(*prefix, *ids), self._constants.vocab_size
        if highest >= size:
            raise UsageError(
                f"{self._bundle.folder}: the tokenizer gives id {highest}, the model has {size} ids; "
                "export the bundle again with the tokenizer of its checkpoint"
            )
        check_room(len(prefix) + len(ids) + len(self._constants.extra_ids), self._capacity)
        return VoxtralPrompt(np.array(prefix, np.int64), voice, np.array(ids, np.int64))


class VoxtralTextToSpeech(TextToSpeech):
    """Each `batched` decoder has an engine stream of its own; prompts and prefix rows are shared."""

    end_code = END_AUDIO

    def __init__(self, bundle: Bundle, engine: Engine, constants: VoxtralConstants):
        """Raises UsageError without a tokenizer, IntegrityError on a broken one."""
        self.bundle, self.engine, self._constants = bundle, engine, constants
        self.languages = bundle.job.languages
        self._prompts = PromptBuilder(bundle, open_tokenizer(tokenizer_paths(bundle)), constants)
        self._prefixes = PrefixCache(bundle, engine.identity)

    @property
    def text_rules(self) -> TextRules:
        """A model with a small vocabulary, as the embedded one, was trained on single sentences without
        digits.
        """
        is_small = self._constants.vocab_size < SMALL_VOCABULARY
        return TextRules(least_characters=0, words_only=True) if is_small else super().text_rules

    @property
    def sample_rate(self) -> int:
        return self._constants.sample_rate

    @property
    def samples_per_frame(self) -> int:
        return self._constants.samples_per_frame

    def estimated_frames(self, text: str) -> float:
        return estimated_frames(text)

    @property
    def max_slots(self) -> int:
        return max_slots(self.bundle.components, BATCHED)

    def voices(self) -> dict[str, int]:
        return count_rows(self.bundle, self._constants.dim)

    def bundle_voices(self) -> list[str]:
        return list(self.bundle.manifest.voices)

    def default_bundle_voice(self) -> str | None:
        return default_voice(self.bundle)

    def code_sizes(self) -> tuple[int, ...]:
        return self._constants.code_sizes

    def decode(self, codes: np.ndarray) -> np.ndarray:
        from voxport.runtime.codes import check_codes

        codes = check_codes(codes, self.code_sizes())
        return VoxtralDecoder(self.engine.stream(), self._constants).decode(codes)

    def language(self, voice: str | None) -> str:
        found = language_of_voice(self.bundle, voice)
        return found if found in self.languages else self.languages[0]

    def fits_prompt(self, voice: str | None, instruct: str | None = None) -> Callable[[str], bool]:
        return self._prompts.fits_prompt(voice)

    def open_files(self) -> None:
        self.engine.open_files()

    def slot_decoder(self, slots: int) -> "VoxtralSlots":
        self.engine.open_ahead()
        return VoxtralSlots(self.engine.batched(slots), self._constants, self._prompts, self._prefixes)


class VoxtralSlots(UtteranceSlots[VoxtralConstants, VoxtralDecoder, np.ndarray]):
    """The backbone and the acoustic head read weights once for all slots."""

    def __init__(
        self, stream: Stream, constants: VoxtralConstants, prompts: PromptBuilder, prefixes: PrefixCache
    ):
        super().__init__(stream, constants, FRAME_LOOP, estimated_frames)
        self._prompts, self._prefixes = prompts, prefixes

    def prepare(self, request: SpeechRequest) -> Fill:
        """Builds the prompt, and reads the stored rows of its prefix. Raises UsageError."""
        prompt = self._prompts.build(request)
        key = prompt.prefix.tobytes() + prompt.voice.tobytes()
        prefix = StoredPrefix(key, request.store_prefix, self._prefixes.load(key))

        def read(slot: int, limit: RowLimit) -> Iterator[None]:
            decoder = VoxtralDecoder(self._stream.slot(slot), self._constants)
            decoder.may_end = request.may_be_empty
            self._begin(slot, decoder, request)
            yield from read_prompt(decoder, prompt, prefix, self._prefixes, limit)

        return read


FAMILY = RuntimeFamily[VoxtralConstants](
    name="voxtral_tts",
    task=TextToSpeech,
    calls=lambda job: {
        "embed_text": Call(frozenset({"ids"}), frozenset({"embeddings"})),
        "embed_codes": Call(frozenset({"codes"}), frozenset({"embeddings"})),
        "prefill": BACKBONE,
        "decode_step": BACKBONE,
        "acoustic_step": Call(frozenset({"x", "step", "condition"}), frozenset({"next_x", "velocity"})),
        "codec_step": Call(frozenset({"codes", "position"}), frozenset({"audio"}), frozenset({"T"})),
    },
    constants=VoxtralConstants,
    voices=lambda bundle: count_rows(bundle, parse_constants(VoxtralConstants, bundle.job.constants).dim),
    open=VoxtralTextToSpeech,
    workloads="voxport.runtime.families.voxtral_tts.workload",
)
