"""Short calibrations of micro checkpoints."""

from unittest.mock import patch

from support.export.golden_qwen3_asr import FOLDER
from support.model.micro import micro_checkpoint

from voxport.bundle.manifest import ExportJob, ExportRequest
from voxport.export.calibration import free_run
from voxport.export.calibration.data import RECORDINGS, CalibrationData
from voxport.export.calibration.record import Call
from voxport.export.evaluation.sentences import Sentence, read_sentences
from voxport.export.job import make_job
from voxport.export.resolve import Resolved, Source, resolve
from voxport.export.targets import open_target
from voxport.runtime.families import open_family
from voxport.runtime.speech_to_text import SpeechToText

FRAMES = 20  # for each sentence
SENTENCES = [Sentence("en", text) for text in ("Seven geese.", "No, on Friday!", "Thick fog.")]  # two voices
DATA = CalibrationData(SENTENCES, "0" * 64)
TARGET = open_target("onnx", "float32")
ALIGNER = "aligner"  # of the family qwen3_asr


def of_family(family: str, **quant_for: str) -> tuple[Resolved, ExportJob]:
    """`family` may also be `ALIGNER`."""
    request = ExportRequest(quant="w4", quant_for=tuple(quant_for.items()))
    checkpoint = FOLDER / ALIGNER if family == ALIGNER else micro_checkpoint(family)
    resolved = resolve(Source(checkpoint), request)
    return resolved, job_of(resolved)


def job_of(resolved: Resolved) -> ExportJob:
    return make_job(resolved, TARGET, "test")


def recorded(resolved: Resolved, job: ExportJob) -> list[tuple[str, Call]]:
    listens = issubclass(open_family(job.family).task, SpeechToText)
    with patch.object(free_run, "FRAMES", FRAMES):
        return free_run.record_run(resolved, job, read_sentences(RECORDINGS, 1) if listens else SENTENCES)
