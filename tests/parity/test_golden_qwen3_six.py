"""The six graphs of `--split six` give the runs of the official package: all in eager, some in artifacts."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from parity.test_golden_qwen3 import BAR, CASES, GOLDEN, SAMPLED, open_golden, prompt_of
from support.export.cache import ExportCache
from support.export.golden_qwen3 import golden_bundle, misses, request_of

from voxport.bundle.errors import IntegrityError
from voxport.bundle.manifest import ExportRequest
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.verify.eager import EagerEngine
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families.qwen3_tts.decoder import QwenDecoder
from voxport.runtime.families.qwen3_tts.prompt import PromptEmbedder
from voxport.runtime.families.qwen3_tts.split_stream import SplitStream, standard_stream
from voxport.runtime.families.qwen3_tts.workload import TRACE
from voxport.runtime.speech_decoder import read_whole

FRAMES = 125  # of a call of the speech decoder
SAMPLES = 1920
FEW = ("sampled", "icl_short")


@cache
def engine(name: str) -> EagerEngine:
    resolved = resolve(Source(GOLDEN / name), ExportRequest(options={"split": "six"}))
    model = Model(resolved, "BSHD")
    return EagerEngine(model.components, model.module, "BSHD")


def stream(name: str) -> SplitStream:
    found = standard_stream(engine(name).stream(), open_golden(name).constants)
    assert isinstance(found, SplitStream)
    return found


def traced(name: str, run: str) -> Arrays:
    golden, inputs = open_golden(name), {"request": np.array(json.dumps(request_of(name, run)))}
    if name == "base":
        inputs["ref_pcm"] = golden.reference["ref_pcm"]
    if run in SAMPLED:
        inputs |= {f"noise_{part}": golden.reference[f"{run}_noise_{part}"] for part in ("c0", "cp")}
    files = [GOLDEN / name / file for file in ("vocab.json", "merges.txt", "tokenizer_config.json")]
    return TRACE.run(engine(name), golden.constants, inputs, False, files)


@pytest.mark.parametrize(("name", "run"), CASES)
def test_a_run_of_the_official_package(name: str, run: str) -> None:
    found, reference = traced(name, run), open_golden(name).reference
    assert found["codes"].tolist() == reference[f"{run}_codes"].tolist()
    for key, bar in (("prefill", 1e-5), ("trailing", 1e-5), ("hidden", BAR), ("audio", BAR)):
        if f"{run}_{key}" in reference:
            assert np.abs(found[key] - reference[f"{run}_{key}"]).max() < bar, key


@pytest.mark.slow
@pytest.mark.parametrize("target", ["coreml", "coreai"])
def test_artifacts_give_runs_of_the_official_package(
    exports: ExportCache, tmp_path: Path, target: str
) -> None:
    """Drawn codes, and those of a recording."""
    with exports.artifacts():
        golden = golden_bundle("base", target, tmp_path / "bundle", "--split", "six")
    assert [misses(golden.run(run, tmp_path)) for run in FEW] == [[], []]


def decoded(codes: np.ndarray, size: int, calls: Stream | None = None) -> np.ndarray:
    """Samples of calls of `size` frames each."""
    decoder = QwenDecoder(calls or stream("base"), open_golden("base").constants)
    return np.concatenate([decoder.decode(codes[at : at + size]) for at in range(0, len(codes), size)])


def test_the_windows_of_the_speech_decoder_do_not_depend_on_the_calls() -> None:
    config = open_golden("base").config.codec.decoder_config
    shape = (FRAMES + 110, 16)  # more than one window, and more than begins with the next one
    codes = np.random.default_rng(0).integers(0, config.codebook_size, shape)
    expected = decoded(codes, len(codes), open_golden("base").engine.stream())
    whole = decoded(codes, len(codes))
    for size in (1 + FRAMES // 2, FRAMES + 1):
        np.testing.assert_array_equal(decoded(codes, size), whole)
    first = slice(FRAMES * SAMPLES)
    assert np.abs(whole[first] - expected[first]).max() < BAR
    # a window has less context than the whole speech, so its samples are near and not equal
    rest = slice(FRAMES * SAMPLES, len(whole))
    error = np.sqrt(np.mean((whole[rest] - expected[rest]) ** 2) / np.mean(expected[rest] ** 2))
    assert 0 < error < 0.1


def test_a_prefix_of_a_prompt_is_taken_from_saved_rows() -> None:
    golden = open_golden("base")
    rows = PromptEmbedder(stream("base"), golden.constants).rows(prompt_of(golden, "base", "xvector"))
    first = QwenDecoder(stream("base"), golden.constants)
    saved = read_whole(first, rows)
    assert {array.shape[-1] for array in saved.values()} == {rows.prefix_rows}
    second = QwenDecoder(stream("base"), golden.constants)
    read_whole(second, rows, saved)
    np.testing.assert_array_equal(second.hidden, first.hidden)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_codebooks": 4}, "audio_codes has shape"),
        ({"dim": 9}, "hidden_states has shape"),
        ({"other_codes": 7}, "all_logits has shape"),
    ],
)
def test_components_that_do_not_fit_the_constants_are_refused(changes: dict[str, int], says: str) -> None:
    constants = open_golden("base").constants.model_copy(update=changes)
    with pytest.raises(IntegrityError, match=says):
        standard_stream(engine("base").stream(), constants)
