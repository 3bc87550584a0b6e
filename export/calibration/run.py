"""`calibrate`: writes what real inputs say about the weights of a checkpoint."""

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import MANIFEST, SCHEMA_VERSION, Bundle, ExportJob, Manifest
from voxport.bundle.user_cache import private_folder
from voxport.export.calibration.data import CalibrationData, built_in, from_folder
from voxport.export.calibration.record import Call, RecordingEngine, join
from voxport.export.calibration.replay import AwaitingInputs, Collector, SegmentAttention, weights_of
from voxport.export.calibration.store import FOLDER, GIVEN, keep, made_before, read_calibration
from voxport.export.evaluation.sentences import Sentence
from voxport.export.evaluation.speech import speak_text
from voxport.export.job import lowering_key, make_job
from voxport.export.model import Model
from voxport.export.resolve import Resolved
from voxport.export.targets.base import Target
from voxport.model.checkpoint import Checkpoint, is_below, materialize
from voxport.model.layers.attention import attention_kernel
from voxport.model.layers.channels import ChannelScales, channels_of
from voxport.quantize.calibration import InputRows, save_calibration
from voxport.quantize.migration import candidates, output_error
from voxport.quantize.modules import float_activations
from voxport.runtime.families import open_family, read_constants
from voxport.runtime.speech_request import SpeechOptions
from voxport.runtime.speech_to_text import SpeechToText
from voxport.runtime.text_to_speech import TextToSpeech

log = logging.getLogger(__name__)
FRAMES = 40  # of a sentence
Rows = dict[str, torch.Tensor]


def calibrated(resolved: Resolved, target: Target, given: Path) -> str:
    """The hash of statistics in the cache folder for an export. They are made unless they are there.

    `given` is a file of statistics, or data as for `from_folder`; an empty path: the built-in data. Raises
    UsageError.
    """
    if not any(recipe.schemes for recipe in resolved.recipes.values()):
        raise UsageError("the recipe quantises nothing; leave it out, or add --quant w4", field="calibrate")
    if given.suffix == ".safetensors":
        read_calibration(given)
        with tempfile.TemporaryDirectory() as folder:
            copied = shutil.copyfile(given, Path(folder) / given.name)
            return keep(copied, GIVEN)
    listens = issubclass(open_family(resolved.source.family.name).task, SpeechToText)
    data = built_in(listens, resolved.source.languages) if given == Path() else from_folder(given, listens)
    job = make_job(resolved, target, "calibration")
    key = _key(resolved, job, data)
    found = made_before(key)
    if found:
        log.info("calibration: statistics %s were made before", found[:12])
        return found
    with tempfile.TemporaryDirectory(dir=private_folder(FOLDER)) as folder:
        path = Path(folder) / "statistics.safetensors"
        calibrate(resolved, job, data.sentences, path)
        return keep(path, key)


def _key(resolved: Resolved, job: ExportJob, data: CalibrationData) -> str:
    """What decides the statistics; no target does."""
    recipes = {name: entry.model_dump(mode="json") for name, entry in job.recipes.items()}
    files = {name: entry.sha256 for name, entry in job.source.files.items()}
    code = lowering_key(Path(__file__).parent)  # this folder, and all that decides weights
    parts = [job.family, files, job.options, job.cache_length, recipes, data.sha256, code]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def calibrate(resolved: Resolved, job: ExportJob, sentences: Sequence[Sentence], out: Path) -> None:
    """Writes `out` for `quantize.calibration.Calibration`. The model speaks or hears the sentences."""
    log.info("calibration: %d sentences", len(sentences))
    calls = _record(resolved, job, sentences)
    plain = _replay(resolved, calls, resolved.source.checkpoint, is_float=True)
    exponents = _exponents(resolved, plain)
    scales = ChannelScales(resolved.source.root(), exponents)
    rows = _replay(resolved, calls, resolved.source.checkpoint.changed(scales), is_float=False)
    save_calibration(out, rows, exponents)


def _record(resolved: Resolved, job: ExportJob, sentences: Sequence[Sentence]) -> list[tuple[str, Call]]:
    """The inputs of all calls of the model's own run over the sentences."""
    model = Model(resolved, "BSHD")
    engine = RecordingEngine(model.components, model.module, "BSHD", float_activations)
    engine.calls = []
    with _as_bundle(resolved, job) as bundle:
        task = open_family(job.family).open(bundle, engine, read_constants(job))
        for seed, sentence in enumerate(sentences):
            if isinstance(task, TextToSpeech):
                voice = _voice(task, sentence, seed)
                speech = SpeechOptions(voice=voice, max_frames=FRAMES, store_prefix=False)
                speak_text(task, sentence, seed, speech)
            elif isinstance(task, SpeechToText):
                samples = sentence.samples(task.sample_rate)
                for _ in task.transcribe([samples], delay_ms=max(task.delays_ms)):
                    pass
    return engine.calls


def _voice(task: TextToSpeech, sentence: Sentence, number: int) -> str | None:
    """A voice for the language that the sentence is named by, in turn; else any voice."""
    voices = task.bundle_voices()
    own = [voice for voice in voices if voice.startswith(f"{sentence.name}_")] or voices
    return own[number % len(own)] if own else None


def _replay(
    resolved: Resolved, calls: Sequence[tuple[str, Call]], checkpoint: Checkpoint, is_float: bool
) -> Rows:
    """The inputs of every quantised linear, by path."""
    found: Rows = {}
    for name in resolved.graphs:
        collector = _replay_graph(resolved, name, calls, checkpoint, is_float)
        if collector.repeated and not is_float:
            collector = _replay_graph(resolved, name, calls, checkpoint, True)
        found |= collector.rows()
        log.info("%s: inputs of %d linears", name, len(collector.rows()))
    return found


def _replay_graph(
    resolved: Resolved, name: str, calls: Sequence[tuple[str, Call]], checkpoint: Checkpoint, is_float: bool
) -> Collector:
    spec, recipe, root = resolved.graphs[name], resolved.recipes[name], resolved.source.root()
    components = [component for component in resolved.components("BSHD") if component.graph == name]
    collector, joined = (
        Collector(weights_of(checkpoint, root), float_activations, is_float),
        join(components, calls),
    )

    def convert(path: str, module: nn.Module, weight: torch.Tensor) -> nn.Module | None:
        scheme = recipe.scheme_for(path, isinstance(module, nn.Embedding))
        if scheme is None or resolved.source.family.is_folded(path):
            return None
        if isinstance(module, nn.Embedding):
            return scheme.quantize(weight, path, True).module
        return AwaitingInputs(collector, [path], weight.to("meta"), scheme)

    if joined is None or not recipe.schemes:
        return collector
    materialize(root, checkpoint, spec.weights, convert)
    module = spec.build(root, resolved.model())
    collector.is_open = True
    with torch.no_grad(), attention_kernel(module, SegmentAttention(joined.lengths)):
        module(*joined.arguments)
    return collector


def _exponents(resolved: Resolved, rows: Rows) -> Rows:
    """For each pair of channels whose readers are quantised, the exponents that are best for them."""
    root, found = resolved.source.root(), {}
    weight_of = weights_of(resolved.source.checkpoint, root)
    schemes = {
        path: scheme
        for graph, recipe in resolved.recipes.items()
        for path in resolved.source.quantizable
        if is_below(path, resolved.graphs[graph].weights) and (scheme := recipe.scheme_for(path, False))
    }
    for pair in channels_of(root):
        if not all(reader in rows and reader in schemes for reader in pair.readers):
            continue
        weights = [weight_of(reader).float() for reader in pair.readers]
        inputs = InputRows.of(rows[pair.readers[0]])
        largest = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
        options = candidates(pair.largest(inputs.fit.abs().amax(0)), pair.largest(largest))
        columns = inputs.fit.shape[1]
        chosen = [schemes[reader] for reader in pair.readers]
        errors = [output_error(chosen, weights, inputs, pair.of_columns(each, columns)) for each in options]
        best = min(range(len(errors)), key=errors.__getitem__)
        log.info("%s: %s", pair.writer, [f"{error:.2e}" for error in errors])
        if best:
            found[pair.writer] = -options[best]
    return found


class _WithoutArtifacts(Bundle):
    def _check_files(self) -> None:
        """The artifacts do not exist yet."""


@contextmanager
def _as_bundle(resolved: Resolved, job: ExportJob) -> Iterator[Bundle]:
    """A bundle without artifacts: the tokenizer and the voices of the checkpoint."""
    from voxport.export.build import with_tokenizer_and_voices

    with tempfile.TemporaryDirectory() as name:
        manifest = Manifest(
            schema_version=SCHEMA_VERSION, job=job, files={}, tokenizer=(), voices={}, weight_errors={}
        )
        manifest = with_tokenizer_and_voices(manifest, resolved.source, Path(name))
        (Path(name) / MANIFEST).write_text(manifest.model_dump_json())  # stored prompts depend on its bytes
        yield _WithoutArtifacts(Path(name), manifest)
