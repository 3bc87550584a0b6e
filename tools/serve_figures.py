"""Measures the server with bundles that speak, and writes the figures to docs/figures/serving.csv.

    python -m tools.serve_figures BUNDLE [BUNDLE ...]

For 1, 2, 4 and 8 clients at a time: the time to the first sound, and frames of 80 ms per second. Then the
time to a refusal while the queue is full, and the time from a client that leaves to a free slot. Figures of
speech are medians of three runs. Rows are named by the bundle's folder and the number of clients.
"""

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx2

from tools.figures import Row, conditions, put
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.runtime.engines.base import EngineOptions

CLIENTS, RUNS, REFUSALS, CANCELS = (1, 2, 4, 8), 3, 50, 20
SLOTS, WAITING = 8, 16
TEXT = " ".join(f"Sentence number {index} is neither short nor long." for index in range(60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--frames", type=int, default=200, help="frames of each answer (default: 200)")
    arguments = parser.parse_args()
    for folder in arguments.bundles:
        put("serving", rows(Bundle(folder), measure(folder, arguments.frames), arguments.frames))


def rows(bundle: Bundle, found: Json, frames: int) -> list[Row]:
    about = {
        "bundle_mb": f"{bundle.size / 1e6:.1f}",
        "threads": str(EngineOptions().thread_count(bundle)),
        "frames": str(frames),
    }
    figures = {f"{count} clients": row for count, row in found["clients"].items()}
    figures |= {"refusal": found["refusal_ms"], "free slot": found["cancel_ms"]}
    return [
        {"id": f"{bundle.folder.name}, {what}", **{key: str(value) for key, value in row.items()}}
        | about
        | conditions()
        for what, row in figures.items()
    ]


def measure(bundle: Path, frames: int, device: str = "auto") -> Json:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--port", str(port), "--slots", str(SLOTS), "--waiting", str(WAITING), "--queue-s", "600"]
    options += ["--bundle", str(bundle.absolute()), "--device", device, "-q"]
    command = [sys.executable, "-m", "voxport", "serve", *options]
    server = subprocess.Popen(command)
    try:
        return asyncio.run(figures(f"http://127.0.0.1:{port}", bundle.name, frames))
    finally:
        server.kill()
        server.wait()


async def figures(url: str, model: str, frames: int) -> Json:
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        slots = await wait_until_ready(client, model)
        if slots < SLOTS:
            raise SystemExit(f"{model}: has {slots} slots, expected {SLOTS}; export the bundle again")
        body = {"model": model, "input": TEXT, "response_format": "pcm", "max_frames": frames}
        voices = (await client.get("/v1/audio/voices")).json()["voices"]
        if voices:
            body["voice"] = voices[0]["id"]
        await speak(client, body)  # opens the graphs, and stores the rows of the voice
        found: Json = {"slots": slots, "clients": {}}
        for count in CLIENTS:
            runs = [await concurrent(client, body, count) for _ in range(RUNS)]
            found["clients"][count] = {
                name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]
            }
        found["refusal_ms"] = await refusals(client, body, slots)
        found["cancel_ms"] = await cancels(client, body)
    return found


async def wait_until_ready(client: httpx2.AsyncClient, model: str) -> int:
    """Returns the number of slots."""
    end = time.monotonic() + 120
    while True:
        try:
            if (await client.get("/readyz")).status_code == 200:
                break
        except httpx2.TransportError:
            assert time.monotonic() < end, "the server does not start"
        await asyncio.sleep(0.1)
    return int(await metric(client, "voxport_slots", model))


async def metric(client: httpx2.AsyncClient, name: str, model: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    (line,) = [line for line in lines if line.startswith(f'{name}{{bundle="{model}"}}')]
    return float(line.rpartition(" ")[2])


async def speak(client: httpx2.AsyncClient, body: Json) -> float:
    """When the first samples came."""
    first = 0.0
    async with client.stream("POST", "/v1/audio/speech", json=body) as response:
        assert response.status_code == 200, (await response.aread())[:300]
        async for _ in response.aiter_raw():
            first = first or time.perf_counter()
    return first


async def concurrent(client: httpx2.AsyncClient, body: Json, count: int) -> dict[str, float]:
    before = await metric(client, "voxport_frames_total", body["model"])
    started = time.perf_counter()
    bodies = [{**body, "seed": seed} for seed in range(count)]
    first = [at - started for at in await asyncio.gather(*(speak(client, each) for each in bodies))]
    elapsed = time.perf_counter() - started
    frames = await metric(client, "voxport_frames_total", body["model"]) - before
    return {
        "first_sound_s": statistics.median(first),
        "last_first_sound_s": max(first),
        "frames_per_s": frames / elapsed,
    }


async def refusals(client: httpx2.AsyncClient, body: Json, slots: int) -> dict[str, float]:
    """Milliseconds of a refusal while all slots and all places of the queue are taken."""
    body = {**body, "max_frames": 100_000}
    async with asyncio.TaskGroup() as group:
        tasks = []
        for name, count in (("voxport_slots_busy", slots), ("voxport_waiting", WAITING)):
            tasks += [group.create_task(speak(client, body)) for _ in range(count)]
            while await metric(client, name, body["model"]) < count:
                await asyncio.sleep(0.05)
        times = []
        for _ in range(REFUSALS):
            started = time.perf_counter()
            answer = await client.post("/v1/audio/speech", json=body)
            times.append(1000 * (time.perf_counter() - started))
            assert answer.status_code == 503 and "retry-after" in answer.headers, answer.status_code
        for task in tasks:
            task.cancel()
    return {"median_ms": round(statistics.median(times), 1), "max_ms": round(max(times), 1)}


async def cancels(client: httpx2.AsyncClient, body: Json) -> dict[str, float]:
    """Milliseconds from the end of a connection until its slot is free, as /metrics shows it.

    Between two parts of a text the slot is free anyway, so the client reads until it is busy.
    """
    busy, model, times = "voxport_slots_busy", body["model"], []
    body = {**body, "max_frames": 100_000}
    while await metric(client, busy, model):  # by the requests before
        pass
    for _ in range(CANCELS):
        async with client.stream("POST", "/v1/audio/speech", json=body) as response:
            pieces = response.aiter_raw()
            await anext(pieces)
            while not await metric(client, busy, model):
                await anext(pieces)
            started = time.perf_counter()
        while await metric(client, busy, model):
            pass
        times.append(1000 * (time.perf_counter() - started))
    return {"median_ms": round(statistics.median(times), 1), "max_ms": round(max(times), 1)}


if __name__ == "__main__":
    main()
