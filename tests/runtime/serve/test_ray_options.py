"""Arguments of the application of Ray Serve. `tools/ray_check.py` runs it on a cluster."""

import gc
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from support.paths import ROOT

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.ray_app import Replica, build, deployment_options, parse_options


def test_arguments_are_texts_as_on_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    options = parse_options(
        {"bundle": "TTS,/b/STT", "cpus": "2", "replicas": "3", "waiting": "5", "queue_s": "1.5", "keys": "k"}
    )
    assert options.bundle == (str(tmp_path / "TTS"), "/b/STT") and options.keys == tmp_path / "k"
    assert (options.cpus, options.replicas, options.slots) == (2, 3, 4)
    assert (options.waiting, options.queue_s) == (5, 1.5)


def test_arguments_may_be_those_of_a_file() -> None:
    options = parse_options({"bundle": ["a", "b"], "allow_origin": ["https://a.example"], "check": False})
    assert [Path(each).name for each in options.bundle] == ["a", "b"]
    assert options.allow_origin == ("https://a.example",) and not options.check


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "bundle: Field required"),
        ({"bundle": ""}, "bundle: "),
        ({"bundle": "a", "port": "80"}, "port: .*expected one of bundle, keys, .*drain_s"),
        ({"bundle": "a", "slots": "0"}, "slots: "),
        ({"bundle": "a", "allow_origin": "a.example"}, "allow_origin .*: expected the URL of a web page"),
        ({"bundle": "a", "waiting": "many"}, "waiting: "),
        ({"bundle": "a", "waiting": "0"}, "waiting: Input should be greater than 0"),
        ({"bundle": "a", "queue_s": "nan"}, "queue_s: Input should be a finite number"),
        ({"bundle": "a", "min_replicas": "2"}, "replicas: 1 is less than min_replicas 2"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Collection[str]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(arguments)


def test_this_server_refuses_before_ray_does() -> None:
    limits = Limits()
    options = parse_options({"bundle": "a", "replicas": "4", "slots": "2"})
    found = deployment_options(options)
    assert found["max_ongoing_requests"] > limits.connections
    assert found["max_queued_requests"] > 4 * limits.connections
    assert found["autoscaling_config"]["max_replicas"] == 4
    assert found["autoscaling_config"]["target_ongoing_requests"] == 2
    assert found["graceful_shutdown_timeout_s"] == limits.drain_s


def test_a_replica_that_cannot_start_ends_without_another_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    with pytest.raises(UsageError, match="missing"):
        Replica(parse_options({"bundle": str(tmp_path), "keys": str(tmp_path / "missing")}))
    gc.collect()
    assert not found


@pytest.mark.slow
def test_a_replica_is_ready_when_ray_sends_requests_to_it(bundles: Path) -> None:
    replica = Replica(parse_options({"bundle": str(bundles / "onnx"), "check": False}))
    assert replica._models and replica._models.is_ready
    assert gc.get_freeze_count() > 10_000  # objects of packages, which no collection looks at
    gc.unfreeze()


def test_ray_is_imported_by_build_only() -> None:
    code = "import sys, runtime.serve.ray_app; assert 'ray' not in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
