"""The number of Euler steps: the option, the flow against one written by hand, and the reported distance."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import JsonValue
from support.export.faulty_engines import Engines, failed
from support.export.rounding import float32_bar

from voxport.bundle.constants.voxtral_tts import VoxtralConstants
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import ExportRequest
from voxport.export.resolve import Resolved, Source, resolve
from voxport.export.targets import open_target
from voxport.export.verify.code_checks import compare_with_default
from voxport.export.verify.comparison import measure
from voxport.export.verify.component_checks import check_components
from voxport.runtime.families.voxtral_tts.decoder import acoustic_values

# A velocity of two blocks has 19 consecutive sums of at most 192 products. The other side is in double.
BAR = float32_bar(19, 192) / math.sqrt(2)


def resolved(checkpoint: Path, **options: JsonValue) -> Resolved:
    return resolve(Source(checkpoint), ExportRequest(options=options, cache_length=64))


def euler_steps_of(export: Resolved) -> int:
    constants = export.constants
    assert isinstance(constants, VoxtralConstants)
    return constants.euler_steps


@pytest.fixture(scope="module")
def three(checkpoint: Path) -> Engines:
    return Engines(checkpoint, "none", cache=64, euler_steps="3")


@pytest.fixture(scope="module")
def seven(checkpoint: Path) -> Engines:
    return Engines(checkpoint, "none", cache=64)


class Flow:
    """The velocity of the acoustic transformer in double precision, one token after the other."""

    def __init__(self, source: Source) -> None:
        config: Any = source.config
        self.args, checkpoint = config.acoustic, source.checkpoint
        self.weight: Callable[[str], torch.Tensor] = lambda name: checkpoint.tensor(
            f"acoustic_transformer.{name}.weight"
        ).double()

    def velocity(self, x: torch.Tensor, t: float, condition: torch.Tensor) -> list[torch.Tensor]:
        half = self.args.dim // 2
        angles = [t * 10000 ** (-i / half) for i in range(half)]
        time = torch.tensor([*map(math.cos, angles), *map(math.sin, angles)], dtype=torch.float64)
        projected = [self.weight("input_projection") @ x, self.weight("time_projection") @ time]
        return [self._output(torch.stack([*projected, one])) for one in (condition, 0 * condition)]

    def _output(self, tokens: torch.Tensor) -> torch.Tensor:
        for index in range(self.args.n_layers):
            tokens = self._block(f"layers.{index}", tokens)
        return self.weight("acoustic_codebook_output") @ self._norm("norm", tokens)[0]

    def _norm(self, name: str, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (
            tokens * (tokens.square().mean(-1, keepdim=True) + self.args.norm_eps).rsqrt() * self.weight(name)
        )
        return found

    def _block(self, name: str, tokens: torch.Tensor) -> torch.Tensor:
        normed, size = self._norm(f"{name}.attention_norm", tokens), self.args.head_dim
        q, k, v = (normed @ self.weight(f"{name}.attention.w{part}").T for part in "qkv")
        heads = []
        for head in range(self.args.n_heads):
            shared = head * self.args.n_kv_heads // self.args.n_heads
            own, group = slice(head * size, head * size + size), slice(shared * size, shared * size + size)
            heads.append((q[:, own] @ k[:, group].T / math.sqrt(size)).softmax(-1) @ v[:, group])
        tokens = tokens + torch.cat(heads, -1) @ self.weight(f"{name}.attention.wo").T
        normed = self._norm(f"{name}.ffn_norm", tokens)
        gate, up = (normed @ self.weight(f"{name}.feed_forward.{part}").T for part in ("w1", "w3"))
        return tokens + (torch.nn.functional.silu(gate) * up) @ self.weight(f"{name}.feed_forward.w2").T

    def run(self, x: torch.Tensor, condition: torch.Tensor, times: np.ndarray) -> np.ndarray:
        for start, end in pairwise(times):
            guided, free = self.velocity(x, float(start), condition)
            x = x + (end - start) * (1.2 * guided - 0.2 * free)
        return x.numpy()


@pytest.mark.parametrize("steps", [1, 3])
def test_the_flow_equals_one_that_is_written_by_hand(checkpoint: Path, steps: int) -> None:
    engines = Engines(checkpoint, "none", cache=64, euler_steps=steps)
    inputs = next(one for one in engines.components if one.name == "acoustic_step").example(1)
    constants, stream = engines.constants, engines.eager.stream()
    found = acoustic_values(stream, constants, inputs["x"], inputs["condition"])[0]
    x, condition = (torch.from_numpy(inputs[name][0]).double() for name in ("x", "condition"))
    expected = Flow(engines.source).run(x, condition, np.linspace(0, 1, steps + 1))
    assert measure(found, expected).largest < BAR


def test_time_tokens_of_another_number_of_steps_fail(three: Engines, checkpoint: Path) -> None:
    """The artifact has the step size of three steps, and the times of seven."""
    artifact = Engines(checkpoint, "none", cache=64)
    vars(artifact.model.module("acoustic_step"))["dt"] = 1 / 3
    context = three.context(artifact.eager)
    own = {"acoustic_step": context.components["acoustic_step"]}
    found = failed(check_components(replace(context, components=own)))
    assert found == ["acoustic_step.next_x", "acoustic_step.velocity"]


def test_the_default_is_the_number_of_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    default, seven = resolved(checkpoint), resolved(checkpoint, euler_steps="7")
    assert default.options == seven.options and default.constants == seven.constants
    assert euler_steps_of(default) == 7
    shutil.copytree(checkpoint, tmp_path / "five")
    path = tmp_path / "five" / "params.json"
    content = json.loads(path.read_text())
    content["multimodal"]["audio_model_args"]["acoustic_transformer_args"]["n_decoding_steps"] = 5
    path.write_text(json.dumps(content))
    options: Any = resolved(tmp_path / "five").options
    assert options.euler_steps == 5
    assert euler_steps_of(resolved(tmp_path / "five", euler_steps=7)) == 7


@pytest.mark.parametrize("steps", ["0", "-1", "1025", "2.5", "three", ""])
def test_a_wrong_number_is_refused(checkpoint: Path, steps: str) -> None:
    with pytest.raises(UsageError, match="euler_steps: Input should be") as error:
        resolved(checkpoint, euler_steps=steps)
    assert error.value.field == "euler_steps"


def test_the_distance_to_the_default_is_reported(three: Engines, seven: Engines, checkpoint: Path) -> None:
    """Of the values before rounding, with the same history."""
    (approximation,) = three.source.family.verification.approximations
    target = open_target("executorch")  # whose caches have the layout of `three`

    def report(engines: Engines) -> list[Any]:
        job = resolve(engines.source, engines.request)
        return list(compare_with_default(approximation, job, target, engines.model, 2))

    (found,) = report(three)
    short = three.workload.teacher_forced_run(three.eager.stream(), three.constants, 2, None)
    whole = three.workload.teacher_forced_run(seven.eager.stream(), seven.constants, 2, short.codes)
    expected = measure(short.values, whole.values).norm
    assert found.name == "codes, euler_steps 3 and 7" and 0.01 < expected < 1
    assert found.values["distance"] == pytest.approx(expected, rel=1e-5)
    assert found.values["other_codes_equal"] == (short.codes == whole.codes)[:, 1:].mean() < 1
    assert report(seven) == []
