"""The model's own run over the sentences of a calibration."""

import hashlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from voxport.bundle.bounds import FRAME_SECONDS
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import MANIFEST, SCHEMA_VERSION, Bundle, ExportJob, Manifest
from voxport.export.build import with_tokenizer_and_voices
from voxport.export.calibration.data import RATE, RECORDINGS
from voxport.export.calibration.languages import language_of, warn_of_other_language
from voxport.export.calibration.record import Call, RecordingEngine
from voxport.export.evaluation.sentences import Sentence, read_sentences
from voxport.export.evaluation.speech import speak_text
from voxport.export.model import Model
from voxport.export.resolve import Resolved
from voxport.quantize.modules import float_activations
from voxport.runtime.families import open_family, read_constants
from voxport.runtime.forced_alignment import ForcedAlignment
from voxport.runtime.speech_request import SpeechOptions
from voxport.runtime.speech_to_text import SpeechToText
from voxport.runtime.text_to_speech import TextToSpeech

FRAMES, LARGE_FRAMES = 40, 12  # for each sentence; a frame of a large model takes seconds
CLONED = 4  # built-in recordings that voices are made from
CACHE_ROWS, ROWS_PER_SECOND = 1024, 32  # a recording with its text takes so many rows a second at most
log = logging.getLogger(__name__)


def record_run(resolved: Resolved, job: ExportJob, sentences: Sequence[Sentence]) -> list[tuple[str, Call]]:
    """The inputs of all calls, by component. Raises UsageError."""
    length = _cache_length(resolved, sentences)
    resolved, job = replace(resolved, cache_length=length), job.model_copy(update={"cache_length": length})
    model = Model(resolved, "BSHD")
    engine = RecordingEngine(model.components, model.module, "BSHD", float_activations)
    frames = LARGE_FRAMES if resolved.source.is_large else FRAMES
    with _without_artifacts(resolved, job) as bundle:
        try:
            task = open_family(job.family).open(bundle, engine, read_constants(job))
        except UsageError as error:
            reason = str(error).removeprefix(f"{bundle.folder}: ")
            raise UsageError(f"no run of this model to look at: {reason}", field="calibrate") from None
        if isinstance(task, TextToSpeech):
            _warn(task, sentences)
        for seed, sentence in enumerate(sentences):
            if isinstance(task, TextToSpeech):
                voice = _voice(task, sentence, seed, bundle.folder)
                try:
                    speak_text(task, sentence, seed, SpeechOptions(voice=voice, max_frames=frames))
                except UsageError as error:
                    raise UsageError(f"{sentence.name}: {error}", field="calibrate") from None
            elif isinstance(task, SpeechToText):
                samples = sentence.samples(task.sample_rate)
                for _ in task.transcribe([samples], delay_ms=max(task.delays_ms)):
                    pass
            elif isinstance(task, ForcedAlignment):
                task.align(sentence.samples(task.sample_rate), sentence.text)
    return engine.calls


def _warn(task: TextToSpeech, sentences: Sequence[Sentence]) -> None:
    if voices := task.bundle_voices():
        warn_of_other_language([each.text for each in sentences], {task.language(each) for each in voices})
    if not task.voice_checkpoint() and any(each.recording for each in sentences):
        log.warning("calibration: this model makes no voices from recordings: their texts alone are spoken")


def _cache_length(resolved: Resolved, sentences: Sequence[Sentence]) -> int:
    """Rows of the caches: attention in eager takes time for all of them, used or not."""
    longest = max((len(each.samples(RATE)) / RATE for each in sentences if each.recording), default=0.0)
    is_short = ROWS_PER_SECOND * longest <= CACHE_ROWS / 2
    return min(resolved.cache_length, CACHE_ROWS) if is_short else resolved.cache_length


def frames_of(sentences: Sequence[Sentence], listens: bool, is_large: bool) -> int:
    """The most frames that are spoken, or the frames of the recordings if the model `listens`."""
    if not listens:
        return len(sentences) * (LARGE_FRAMES if is_large else FRAMES)
    return round(sum(len(sentence.samples(RATE)) for sentence in sentences) / RATE / FRAME_SECONDS)


def _voice(task: TextToSpeech, sentence: Sentence, number: int, folder: Path) -> str | None:
    """The voice of the sentence's recording, or one of the model that speaks its language, in turn. A model
    without voices gets them from built-in recordings.
    """
    voices = task.bundle_voices()
    if task.voice_checkpoint() and (sentence.recording or not voices):
        built_in = read_sentences(RECORDINGS, CLONED)[number % CLONED]
        recording = sentence.recording or built_in.check_recording()
        path = folder / f"{hashlib.sha256(str(recording).encode()).hexdigest()[:8]}.safetensors"
        if not path.exists():
            path.write_bytes(task.make_voice(recording))
        return str(path)
    if not voices:
        return None
    languages = {voice: task.language(voice) for voice in voices}
    language = language_of(sentence.text, languages.values())
    own = [voice for voice, spoken in languages.items() if spoken == language]
    return own[number % len(own)]


class _WithoutArtifacts(Bundle):
    def _check_files(self) -> None:
        """The artifacts do not exist yet."""


@contextmanager
def _without_artifacts(resolved: Resolved, job: ExportJob) -> Iterator[Bundle]:
    """A bundle with the tokenizer and the voices of the checkpoint."""
    with tempfile.TemporaryDirectory() as name:
        manifest = Manifest(
            schema_version=SCHEMA_VERSION, job=job, files={}, tokenizer=(), voices={}, weight_errors={}
        )
        manifest = with_tokenizer_and_voices(manifest, resolved.source, Path(name))
        (Path(name) / MANIFEST).write_text(manifest.model_dump_json())  # stored prompts depend on its bytes
        yield _WithoutArtifacts(Path(name), manifest)
