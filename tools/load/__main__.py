"""Load on the server, with clients that behave well and clients that do not. Fails if a bar is missed.

    PYTHONPATH=tests:tools python -m load --seconds 120 -o load.json

The server runs in a process of its own, with tasks that need no model, so that each answer can be checked.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from load.clients import Results, forever, garbage, half_open, leave_early, read_nothing, speak, transcribe
from load.server import LIMITS, LISTENERS, PASS_S, SLOTS, TALKERS, LoopLag, machine, percentiles
from support.paths import ROOT
from support.serve.http_server import free_port, wait_until

CLIENTS, SOCKETS = 200, 20
FOLDERS = "src", "tests", "tools"
REFUSAL_MS, LAG_MS, GROWTH_MB = 100, 50, 20  # bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--sockets", type=int, default=SOCKETS)
    parser.add_argument("-o", type=Path, help="JSON to write")
    arguments = parser.parse_args()
    random.seed(1)
    load = round(os.getloadavg()[0], 1)  # other work on the machine
    found = run(arguments) | {"load_average_before": load}
    text = json.dumps(found, indent=1) + "\n"
    if arguments.o:
        arguments.o.parent.mkdir(parents=True, exist_ok=True)
        arguments.o.write_text(text)
    print(text, end="")
    sys.exit(1 if found["missed"] else 0)


def run(options: argparse.Namespace) -> dict[str, Any]:
    port = free_port()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in FOLDERS)}
    server = subprocess.Popen(
        [sys.executable, "-m", "load.server", str(port)], stdout=subprocess.PIPE, env=environment, text=True
    )
    results = Results()
    try:
        wait_until(lambda: is_open(port), 30)
        asyncio.run(load(port, server.pid, options, results))
        server.send_signal(signal.SIGTERM)
        output, _ = server.communicate(timeout=30)
    finally:
        server.kill()
    used = {"seconds": options.seconds, "clients": options.clients, "sockets": options.sockets}
    return used | report(results, json.loads(output.splitlines()[-1]))


def is_open(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


async def load(port: int, pid: int, options: argparse.Namespace, results: Results) -> None:
    tenth, twentieth = options.clients // 10, options.clients // 20
    visits = [partial(speak, port, "slow", "slow", results)] * tenth
    visits += [partial(leave_early, port, results)] * tenth
    unread = twentieth // 2
    visits += [partial(half_open, port, results)] * (twentieth - unread)
    visits += [partial(read_nothing, port, results)] * unread
    visits += [partial(garbage, port, results)] * twentieth
    rest = options.clients - len(visits)
    names = [TALKERS[index % len(TALKERS)] for index in range(rest)]
    visits += [partial(speak, port, name, "talking", results) for name in names]
    names = [LISTENERS[index % len(LISTENERS)] for index in range(options.sockets)]
    visits += [partial(transcribe, port, name, results) for name in names]
    tasks = [asyncio.create_task(forever(visit)) for visit in visits]
    async with LoopLag() as lag:
        for _ in range(options.seconds):
            await asyncio.sleep(1)
            results.memory_mb.append(resident_mb(pid))
            for task in tasks:
                if task.done():
                    task.result()  # raises
    results.loop_lag_ms = lag.lags
    pending = set(tasks)
    while pending:  # a timeout that ends at the same moment may take the place of a cancellation
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1)
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):  # other than the cancellation
            raise result


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def report(results: Results, server: dict[str, Any]) -> dict[str, Any]:
    """`server`: what it measured itself. Refusals and lags of both sides tell which one is late."""
    memory = results.memory_mb
    settled = memory[len(memory) // 2] if len(memory) < 120 else memory[60]
    figures: dict[str, Any] = {
        "wrong": len(results.wrong),
        "refusal_ms": percentiles(results.refusal_ms),
        **server,
        "client_loop_lag_ms": percentiles(results.loop_lag_ms),
        "memory_growth_mb": round(max(memory[-5:]) - settled, 1),
    }
    bars = {
        "wrong": not results.wrong,
        "refusal_ms": figures["refusal_ms"]["max"] <= REFUSAL_MS,
        "server_refusal_ms": figures["server_refusal_ms"]["max"] <= REFUSAL_MS,
        "loop_lag_ms": figures["loop_lag_ms"]["p99"] < LAG_MS,
        "memory_growth_mb": figures["memory_growth_mb"] <= GROWTH_MB,
    }
    return {
        "machine": machine(),
        "server": f"{SLOTS} slots, {1000 * PASS_S:g} ms for a pass, jobs_per_key {LIMITS.jobs_per_key}",
        "served": dict(results.served),
        "refused": dict(results.refused),
        "first_sound_ms": percentiles(results.first_sound_ms),
        "memory_mb": {"after a minute": round(settled, 1), "end": round(memory[-1], 1)},
        **figures,
        "examples_of_wrong": results.wrong[:5],
        "missed": [name for name, is_met in bars.items() if not is_met],
    }


if __name__ == "__main__":
    main()
