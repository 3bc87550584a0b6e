"""Parts of ExecuTorch programs share packed weights within one bundle, and not with another."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.extension.pybindings import _portable_lib
from torch import Tensor, nn

from voxport.export.targets.executorch.lowering import LinearPartitioner
from voxport.quantize.modules import QuantizedLinear, int8_per_token, linear_kernel
from voxport.quantize.schemes import IntegerScheme
from voxport.runtime.engines import packed_weights
from voxport.runtime.engines.packed_weights import packed_once

WIDTH = 64


@pytest.fixture(autouse=True)
def no_engine_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_weights, "_sharing", WeakSet())
    monkeypatch.setattr(packed_weights, "_is_usable", True)


class Bundle:
    """An engine and its bundle, as far as sharing depends on them."""

    def __init__(self, manifest: str) -> None:
        self.bundle: Any = SimpleNamespace(manifest=manifest)

    def load(self, path: Path) -> tuple[Any, Any]:
        program = _portable_lib._load_program(str(path))
        with packed_once(cast(Any, self), _portable_lib.__file__):
            return program, program.load_method("forward")


class Linear(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        integers = torch.randint(-127, 128, (WIDTH, WIDTH), dtype=torch.int8, generator=generator)
        scale = torch.rand(WIDTH, 1, generator=generator) * factor
        self.linear = QuantizedLinear(integers, scale, IntegerScheme(bits=8))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x)
        return found


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def programs(x: Tensor, tmp_path_factory: pytest.TempPathFactory) -> dict[float, Path]:
    """Programs with equal integers, by the factor of their scales."""
    folder, paths = tmp_path_factory.mktemp("programs"), {}
    for factor in (1.0, 3.0):
        module, partitioner = Linear(factor), LinearPartitioner()
        with linear_kernel(module, int8_per_token):
            traced = torch.export.export(module, (x,))
        whole, _ = partitioner.ops_to_not_decompose(traced)
        edge = to_edge(traced, compile_config=EdgeCompileConfig(preserve_ops=whole, _check_ir_validity=False))
        paths[factor] = folder / f"{factor}.pte"
        paths[factor].write_bytes(edge.to_backend(partitioner).to_executorch().buffer)
    return paths


def result(loaded: tuple[Any, Any], x: Tensor) -> Tensor:
    found: Tensor = loaded[1]([x])[0].clone()
    return found


def expected(factor: float, x: Tensor) -> Tensor:
    module = Linear(factor)
    with linear_kernel(module, int8_per_token):
        found: Tensor = module(x)
        return found


def test_bundles_with_equal_integers_keep_their_scales(programs: dict[float, Path], x: Tensor) -> None:
    first, second = Bundle("first"), Bundle("second")
    loaded = [first.load(programs[1.0]), second.load(programs[3.0]), first.load(programs[1.0])]
    for each, factor in zip(loaded, (1.0, 3.0, 1.0), strict=True):
        torch.testing.assert_close(result(each, x), expected(factor, x), rtol=1e-4, atol=1e-3)


def test_the_next_bundle_finds_no_weights_of_one_that_was_closed(
    programs: dict[float, Path], x: Tensor
) -> None:
    first = Bundle("first")
    loaded = first.load(programs[1.0])
    result(loaded, x)
    del first, loaded
    second = Bundle("second")
    torch.testing.assert_close(result(second.load(programs[3.0]), x), expected(3.0, x), rtol=1e-4, atol=1e-3)


def test_parts_of_one_bundle_share_weights(programs: dict[float, Path], x: Tensor) -> None:
    """The second program has other scales, which the cache ignores. If a later ExecuTorch compares scales,
    this test fails, and several bundles may share.
    """
    engine = Bundle("first")
    kept = engine.load(programs[1.0])
    again = Bundle("first")  # another engine of the same bundle
    assert torch.equal(result(again.load(programs[3.0]), x), result(kept, x))


def test_nothing_is_shared_after_a_method_failed_to_load(programs: dict[float, Path], x: Tensor) -> None:
    engine = Bundle("first")
    with pytest.raises(RuntimeError, match="damaged"), packed_once(cast(Any, engine), _portable_lib.__file__):
        raise RuntimeError("damaged")
    loaded = [engine.load(programs[1.0]), engine.load(programs[3.0])]
    for each, factor in zip(loaded, (1.0, 3.0), strict=True):
        torch.testing.assert_close(result(each, x), expected(factor, x), rtol=1e-4, atol=1e-3)


def test_a_build_without_the_option_shares_nothing(tmp_path: Path) -> None:
    engine = Bundle("first")
    for library in (str(tmp_path / "missing.so"), torch._C.__file__):
        with packed_once(cast(Any, engine), library):
            assert not packed_weights._sharing
