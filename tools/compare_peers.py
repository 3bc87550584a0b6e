"""Times bundles of Voxtral-TTS and other projects on the same shapes, and writes docs/figures/peers.csv.

    python -m tools.compare_peers NAME BUNDLE... --folder FOLDER

NAME is the machine in the ids of the rows. Peers are modules of `peers/`, which say what they run and what
they need. They have random weights in the shapes of the model. `backbone`: one token behind earlier ones, as
many layers as the bundles have, and the semantic head. `step`: three layers of the acoustic head, as in an
Euler step. The bundles compute two rows instead of six in most of the last of these layers. Every measurement
runs in a process of its own, because engines leave settings and waiting threads behind.
"""

import argparse
import importlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np

from tools.figures import Row, conditions, put
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.runtime.bench import bench
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.machine import describe_machine

ROUNDS, CALLS = 3, 20


def in_new_process(function: Callable[..., Json], *arguments: Any) -> Json:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def median_ms(call: Callable[[], None]) -> float:
    return float(np.median([timeit(call, number=1) for _ in range(CALLS)][2:])) * 1e3


def peer_ms(name: str, folder: Path, layers: int, threads: int) -> dict[str, float]:
    peer = importlib.import_module(f"tools.peers.{name}")
    return {part: median_ms(call) for part, call in peer.calls(folder, layers, threads).items()}


def describe_peer(name: str) -> dict[str, str]:
    found: dict[str, str] = importlib.import_module(f"tools.peers.{name}").describe()
    return found


def bundle_ms(folder: Path, threads: int) -> dict[str, float]:
    """Medians of a backbone step and of an Euler step."""
    components = bench(folder, EngineOptions(threads), CALLS, 20)["components"]
    return {
        "backbone": components["decode_step"]["median_ms"],
        "step": components["acoustic_step"]["median_ms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument("--peers", default="llama_cpp,executorch_example")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the peers' models")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    threads, first = arguments.threads, Bundle(arguments.bundles[0])
    layers = sum(state.cache is not None for state in first.component("decode_step").signature.states) // 2
    peers = arguments.peers.split(",")
    rounds: dict[str, list[dict[str, float]]] = {}
    for _ in range(ROUNDS):
        for name in peers:
            times = in_new_process(peer_ms, name, arguments.folder, layers, threads)
            rounds.setdefault(name, []).append(times)
        for folder in arguments.bundles:
            times = in_new_process(bundle_ms, folder, threads)
            rounds.setdefault(folder.name, []).append(times)
    about = conditions(describe_machine(threads, "onnxruntime"))
    for name in peers:
        about["versions"] += "".join(f", {key} {value}" for key, value in describe_peer(name).items())
    put("peers", [row(f"{arguments.name}, {name}", layers, found) | about for name, found in rounds.items()])


def row(name: str, layers: int, rounds: list[dict[str, float]]) -> Row:
    """Medians of the rounds, and their ranges."""
    found = {"id": name, "backbone_layers": str(layers)}
    for part in rounds[0]:
        times = [each[part] for each in rounds]
        found[f"{part}_ms"] = f"{np.median(times):.1f}"
        found[f"{part}_ms_range"] = f"{min(times):.1f}-{max(times):.1f}"
    return found


if __name__ == "__main__":
    main()
