"""Bundles of the golden checkpoints of Qwen3-TTS, and their distance from the official package."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from parity.test_golden_qwen3 import BAR, GOLDEN, RUNS, SAMPLED
from support.export.faulty_engines import StreamEngine

from voxport.bundle.manifest import MANIFEST, SCHEMA_VERSION, Bundle, ExportRequest, Manifest, file_entry
from voxport.bundle.spec import StateSpec
from voxport.export.__main__ import main as export
from voxport.export.job import make_job
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.export.verify.eager import EagerEngine
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.base import Arrays, Engine, EngineOptions, Stream
from voxport.runtime.families import RuntimeFamily, open_family, read_constants, tokenizer_paths
from voxport.runtime.families.qwen3_tts.cloning import speaker_embedding
from voxport.runtime.families.qwen3_tts.decoder import QwenDecoder
from voxport.runtime.trace import read_inputs

MODES = {"base": "x_vector", "custom_voice": "speaker", "voice_design": "design"}
LIMIT, SAMPLED_LIMIT = 13, 9  # `max_new_tokens` of the reference
BARS = {"prefill": 1e-5, "trailing": 1e-5}  # bars that are not BAR
OF_A_RUN = ("prefill", "trailing", "hidden", "audio")
OF_A_RECORDING = ("mel", "speaker_embedding")
CODEC_FRAMES, CODEC_CALL = 316, 4  # frames up to the end of `codec_whole_tail`, and of one call
FRAME, PCM_SCALE = 1920, 32768
CACHE = 128
OPTIONS = ("--quant", "none", "--no-verify", "--cache-length", str(CACHE))
PRECISION = {"coreml": "float32", "coreai": "float32"}  # in which the artifacts of a target are made
CASES = [(name, run) for name, runs in RUNS.items() for run in runs]


class Golden:
    """An engine of a golden checkpoint, with its reference."""

    def __init__(self, name: str, engine: Engine, constants: Any, tokenizer: Sequence[Path]) -> None:
        self.name, self.reference = name, np.load(GOLDEN / f"{name}.npz")
        self.engine, self.constants, self.files = engine, constants, tokenizer
        self.family: RuntimeFamily[Any] = open_family("qwen3_tts")

    def trace(self, folder: Path, request: dict[str, Any], **arrays: Any) -> dict[str, np.ndarray]:
        path = folder / "inputs.npz"
        np.savez(path, request=json.dumps(request), **arrays)
        trace = self.family.trace
        inputs = read_inputs(path, trace.inputs(self.constants))
        return trace.run(self.engine, self.constants, inputs, False, self.files)

    def arrays(self, run: str) -> dict[str, np.ndarray]:
        """Inputs of the trace of a run besides its request."""
        found = {"ref_pcm": self.reference["ref_pcm"]} if self.name == "base" else {}
        noise = ("c0", "cp") if run in SAMPLED else ()
        return found | {f"noise_{part}": self.reference[f"{run}_noise_{part}"] for part in noise}

    def run(self, run: str, folder: Path) -> dict[str, float | bool]:
        """The largest difference of each array of a run, and whether codes are equal."""
        return self.compare(run, self.trace(folder, request_of(self.name, run), **self.arrays(run)))

    def compare(self, run: str, found: Mapping[str, np.ndarray]) -> dict[str, float | bool]:
        """`run` of given outputs of a trace."""
        expected = {key: f"{run}_{key}" for key in ("codes", *OF_A_RUN)}
        expected |= {key: key for key in (*OF_A_RECORDING, "ref_codes") if key in found}
        return {
            key: difference(found[key], self.reference[name])
            for key, name in expected.items()
            if name in self.reference
        }

    def stages(self) -> dict[str, float | bool]:
        """The largest differences of codec and encoders alone, and whether codes of recordings are equal.

        Values inside a graph are no outputs of a bundle.
        """
        stream, reference = self.engine.stream(), self.reference
        codes, tail = reference["codec_codes"], reference["codec_whole_tail"]
        decoder = QwenDecoder(stream, self.constants)
        audio = [decoder.decode(codes[at : at + CODEC_CALL]) for at in range(0, CODEC_FRAMES, CODEC_CALL)]
        samples = np.concatenate(audio)
        found, recording = {}, reference["ref_pcm"].astype(np.float32) / PCM_SCALE
        found["codec_audio"] = difference(samples[: len(reference["codec_audio"])], reference["codec_audio"])
        found["codec_whole_tail"] = difference(samples[-len(tail) :], tail)
        mel, vector = speaker_embedding(stream, recording)
        found["mel"] = difference(mel, reference["mel"])
        found["speaker_embedding"] = difference(vector, reference["speaker_embedding"])
        outputs = stream.run("speech_encoder", framed(reference["ref_pcm"]))
        found["enc_distance_gap"] = difference(outputs["margins"][0], reference["enc_distance_gap"])
        found["ref_codes"] = difference(outputs["codes"][0], reference["ref_codes"])
        outputs = stream.run("speech_encoder", framed(reference["short_pcm"]))
        found["short_codes"] = difference(outputs["codes"][0], reference["short_codes"])
        return found


def golden_bundle(name: str, target: str, folder: Path, *options: str) -> Golden:
    """A bundle of a golden checkpoint, exported into `folder` unless it is there, with more options."""
    precision = PRECISION.get(target)
    if not folder.exists():
        arguments = ["--checkpoint", str(GOLDEN / name), "--target", target, "--out", str(folder)]
        arguments += ["--compute-precision", precision] if precision else []
        assert export([*arguments, *OPTIONS, *options]) == 0
    bundle = Bundle(folder)
    engine = open_engine(bundle, options_of(target))
    return Golden(name, engine, read_constants(bundle.job), tokenizer_paths(bundle))


def options_of(target: str) -> EngineOptions:
    """Core ML's reference executor is asked not to round; other engines run what was made."""
    return EngineOptions(compute_precision="float32" if target == "coreml" else None)


def partly_lowered(name: str, target_name: str, graphs: Sequence[str], folder: Path) -> Golden:
    """A golden checkpoint with some graphs lowered into `folder`, and the others in eager."""
    target = open_target(target_name, PRECISION.get(target_name))
    resolved = resolve(Source(GOLDEN / name), ExportRequest(quant="none", cache_length=CACHE))
    model, job = Model(resolved, target.layout), make_job(resolved, target, "test")
    for graph in graphs:
        target.lower(model.graph(graph), folder)
    entries = tuple(entry for entry in job.components if entry.graph in graphs)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        job=job.model_copy(update={"components": entries}),
        files={
            path.relative_to(folder).as_posix(): file_entry(path)
            for path in folder.rglob("*")
            if path.is_file()
        },
        tokenizer=(),
        voices={},
        weight_errors={},
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    artifact = open_engine(Bundle(folder), options_of(target_name))
    eager = EagerEngine(model.components, model.module, target.layout)
    tokenizer = [GOLDEN / name / file for file in resolved.source.tokenizer_files]
    return Golden(
        name,
        StreamEngine(lambda: MixedStream(artifact.stream(), eager.stream())),
        resolved.constants,
        tokenizer,
    )


class MixedStream(Stream):
    """The components of one stream, and of another one where the first does not have them."""

    def __init__(self, first: Stream, other: Stream) -> None:
        super().__init__({**other.signatures, **first.signatures})
        self._own, self._other = first, other

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        stream = self._own if component in self._own.signatures else self._other
        return stream.run(component, inputs)

    def reset(self) -> None: ...

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        return {}

    def _load(self, states: Arrays) -> None: ...


def framed(pcm: np.ndarray) -> dict[str, np.ndarray]:
    """Inputs of the speech encoder, int16 [n] in frames and the number of samples."""
    count = -(-len(pcm) // FRAME)
    samples = np.pad(pcm / PCM_SCALE, (0, count * FRAME - len(pcm))).astype(np.float32)
    return {"audio": samples.reshape(1, count, FRAME), "length": np.array([len(pcm)])}


def difference(found: np.ndarray, expected: np.ndarray) -> float | bool:
    """The largest difference of floats, and whether codes are equal."""
    if np.issubdtype(expected.dtype, np.integer):
        return bool(np.array_equal(found, expected))
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


def misses(differences: dict[str, float | bool]) -> list[str]:
    """What is not within its bar, or not equal."""
    return [
        f"{key}: {value}"
        for key, value in differences.items()
        if not (value if isinstance(value, bool) else value < BARS.get(key, BAR))
    ]


def request_of(name: str, run: str) -> dict[str, Any]:
    """The request of a run."""
    text, fields = RUNS[name][run]
    request = {
        "mode": "icl" if "reference" in fields else MODES[name],
        "text": text,
        "language": fields.get("language", "english"),
        "speaker": fields.get("speaker"),
        "instruct": fields.get("instruct"),
        "ref_text": fields.get("reference"),
        "layout": "streaming" if fields.get("streaming", True) else "non_streaming",
        "max_new_tokens": SAMPLED_LIMIT if run in SAMPLED else LIMIT,
    }
    if run in SAMPLED:
        first, others = SAMPLED[run].first, SAMPLED[run].others
        request["sampling"] = {
            "temperature": first.temperature,
            "top_k": first.top_k,
            "top_p": first.top_p,
            "repetition_penalty": first.repetition_penalty,
            "sub_temperature": others.temperature,
            "sub_top_k": others.top_k,
            "sub_top_p": others.top_p,
        }
    return {key: value for key, value in request.items() if value is not None}
