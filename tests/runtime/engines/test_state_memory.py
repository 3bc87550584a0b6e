"""States in the memory of a device are changed like those on the host."""

import gc
from typing import Any

import numpy as np
import pytest
from support.export.cache import SharedBundles
from support.runtime.host_device import HostDevice

import voxport.runtime.engines.onnx
from voxport.bundle.manifest import Bundle
from voxport.bundle.spec import CacheSpec, StateSpec
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.cuda import DeviceStates
from voxport.runtime.engines.states import HostStates, States

SPECS = {
    "whole": StateSpec("whole", "float32", (1, 2, 9, 3), CacheSpec("BHSD, staged")),
    "by_row": StateSpec("by_row", "float32", (1, 9, 2, 3), CacheSpec("BSHD")),
    "one": StateSpec("one", "float32", (1, 2, 6, 3), CacheSpec("BHSD, staged", window=6)),
    "many": StateSpec("many", "float32", (1, 2, 12, 3), CacheSpec("BHSD, staged", window=6, max_call_rows=7)),
    "count": StateSpec("count", "float32", (1, 5)),
}


def noise(batch: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    """States that float16 represents."""
    generator = np.random.default_rng(seed)
    shapes = {name: (batch, *state.shape[1:]) for name, state in SPECS.items()}
    return {
        name: generator.standard_normal(shape).astype(np.float16).astype(np.float32)
        for name, shape in shapes.items()
    }


def assert_equal(first: States, second: States) -> None:
    for name in SPECS:
        np.testing.assert_array_equal(second.read(name), first.read(name))


def write(states: States, arrays: dict[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        states.write(name, array)


@pytest.fixture(params=["float32", "float16"])
def both(request: pytest.FixtureRequest) -> tuple[States, States]:
    pair = HostStates(SPECS, request.param), DeviceStates(HostDevice(), SPECS, request.param)
    for states in pair:
        write(states, noise())
    return pair


def test_values_survive_a_round_trip(both: tuple[States, States]) -> None:
    assert_equal(*both)
    for name, array in noise().items():
        np.testing.assert_array_equal(both[1].read(name), array)
    for states in both:
        states.clear()
    assert_equal(*both)
    assert not any(both[1].read(name).any() for name in SPECS)


@pytest.mark.parametrize(("name", "position", "count"), [
    *(("one", position, 1) for position in (0, 4, 5, 6, 13)),
    *(("many", position, count) for position in (0, 3, 4, 11) for count in (1, 5, 7)),
])  # fmt: skip
def test_new_rows_move_into_the_history(
    both: tuple[States, States], name: str, position: int, count: int
) -> None:
    """Compared with the row by row definition in `bundle.spec.Layout`."""
    expected = noise()[name]
    staged = min(position, 5) if name == "one" else 5
    for row in range(count):
        if staged + row >= 5:
            expected[:, :, (position + row) % 5] = noise()[name][:, :, staged + row]
    for states in both:
        states.move_into_history(name, position, count)
        np.testing.assert_array_equal(states.read(name), expected)


def test_results_replace_states(both: tuple[Any, Any]) -> None:
    for states in both:
        states.result_address("count")
    both[0]._results["count"][:] = 7
    block = both[1]._device.blocks[both[1].result_address("count")]
    block.view(both[1].dtype)[:] = 7
    for states in both:
        states.keep_results(["count"])
    assert_equal(*both)
    assert (both[1].read("count") == 7).all()


def test_slots_share_the_memory_of_the_whole() -> None:
    device = HostDevice()
    pair = HostStates(SPECS, "float16", 3), DeviceStates(device, SPECS, "float16", 3)
    for states in pair:
        write(states, noise(batch=3))
        write(states.part(1, 1), noise(seed=2))
        states.part(2, 1).clear()
        states.part(0, 1).move_rows("whole", 6, 0, 2)
    assert_equal(*pair)
    assert not pair[1].read("whole")[2].any()
    del states, pair
    gc.collect()
    assert not device.blocks  # all memory is freed


@pytest.mark.parametrize("positions", [0, 4, 20])
def test_the_first_positions_of_a_state_are_read_and_written(
    both: tuple[States, States], positions: int
) -> None:
    for name in SPECS:
        found = [states.read(name, positions) for states in both]
        np.testing.assert_array_equal(found[0], found[1])
        for states in both:
            states.clear()
            states.write(name, found[0])
        assert_equal(*both)
        rows = (slice(None),) * (1 if name == "by_row" else 2) + (slice(positions),)
        expected = np.zeros_like(noise()[name])
        expected[() if name == "count" else rows] = noise()[name][() if name == "count" else rows]
        np.testing.assert_array_equal(both[0].read(name), expected)
        for states in both:
            write(states, noise())


def test_the_first_slots_share_the_memory_of_the_whole() -> None:
    for states in (HostStates(SPECS, "float32", 3), DeviceStates(HostDevice(), SPECS, "float32", 3)):
        write(states, noise(batch=3))
        part = states.part(0, 2)
        np.testing.assert_array_equal(part.read("whole"), noise(batch=3)["whole"][:2])
        part.clear()
        assert not states.read("whole")[:2].any() and states.read("whole")[2].all()
        assert {part.address(name) == states.address(name) for name in SPECS} == {True}


def test_a_call_waits_once_for_its_states_and_once_for_the_rows_of_all_caches(
    qwen_bundles: SharedBundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, bundle = HostDevice(), Bundle(qwen_bundles / "onnx")
    monkeypatch.setattr(voxport.runtime.engines.onnx, "open_device", lambda job, name: device)
    stream = open_engine(bundle).stream()
    codes = np.zeros((1, 1, int(stream.signatures["codec_step"].inputs[0].shape[-1])), np.int64)
    before = device.waits
    stream.run("codec_step", {"codes": codes, "position": np.zeros(1, np.int64)})
    assert device.waits - before == 2
