"""Runs the application of Ray Serve on a cluster of two nodes of one processor, and prints one JSON.

    python -m tools.ray_check --tts BUNDLE --stt BUNDLE

The cluster runs in a network namespace with loopback only, which needs root. A node is killed while streams
run: the streams of its replica end in an error, the others are whole, and 20 of 20 new requests are served.
The text-to-speech bundle has float weights, so that the same text gives the same samples in any batch. The
speech-to-text bundle has trained ones: it transcribes a recording word for word.
"""

import argparse
import asyncio
import base64
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import websockets

from tools.serve_figures import metric
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.export.evaluation.sentences import HELD_OUT, read_sentences
from voxport.runtime.audio.files import pcm16
from voxport.runtime.engines import ENGINES
from voxport.runtime.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
INSIDE = "VOXPORT_RAY_CHECK"  # set in the namespace
URL, SOCKET = "http://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/realtime?intent=transcription&model="
TEXT = " ".join(f"Sentence number {index} is neither short nor long." for index in range(75))
STREAMS, NEW = 6, 20
CPUS = 1  # a node and a replica have one
RATE = 16000  # samples a second that a socket sends
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0"}
OBJECT_STORE = 80 * 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tts", type=Path, required=True, help="bundle with float weights")
    parser.add_argument("--stt", type=Path, required=True, help="trained bundle for live audio")
    arguments = parser.parse_args()
    if INSIDE not in os.environ:
        command = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        environment = os.environ | RAY | {INSIDE: "1", "PYTHONPATH": str(ROOT / "src")}
        sys.exit(subprocess.call([*command, sys.executable, *sys.argv], env=environment))
    results = conditions(arguments.tts, arguments.stt) | check(arguments.tts, arguments.stt)
    print(json.dumps(results, indent=1))


def conditions(*folders: Path) -> Json:
    """The machine and the bundles. The engines of a replica have the threads that its `cpus` are."""
    bundles = [Bundle(folder) for folder in folders]
    entries = [
        {
            "name": bundle.folder.name,
            "checkpoint": bundle.job.source.name,
            "target": bundle.job.target,
            "recipe": bundle.job.request.quant,
            "bytes": bundle.size,
        }
        for bundle in bundles
    ]
    package = ENGINES[bundles[0].job.target].packages[0]
    return {"machine": describe_machine(CPUS, package), "bundles": entries}


def check(tts: Path, stt: Path) -> Json:
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster
    from ray.serve.config import HTTPOptions, ProxyLocation

    from voxport.runtime.serve.ray_app import build

    started = time.perf_counter()
    node = {"num_cpus": CPUS, "object_store_memory": OBJECT_STORE, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    other = cluster.add_node(**node)
    cluster.connect()
    found: Json = {"ray": ray.__version__, "cluster_s": since(started)}
    try:
        started = time.perf_counter()
        address = HTTPOptions(host="127.0.0.1", port=8000)
        serve.start(proxy_location=ProxyLocation.HeadOnly, http_options=address)
        options = {"bundle": f"{tts},{stt}", "cpus": CPUS, "min_replicas": 2, "replicas": 2}
        serve.run(build(options), name="voxport")
        found["application_s"] = since(started)
        found |= asyncio.run(scenario(tts.name, stt.name, lambda: cluster.remove_node(other, False)))
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
    return found


async def scenario(tts: str, stt: str, kill: Any) -> Json:
    found: Json = {}
    async with httpx2.AsyncClient(base_url=URL, timeout=60) as client:
        expected = (await client.post("/v1/audio/speech", json=request(tts))).read()
        found["overhead_ms"] = await latency(client)
        found["socket"] = await socket_keeps_its_replica(client, tts, stt)
        found["killed"] = await node_is_killed(client, tts, expected, kill)
        found["cancel_s"] = [await cancel(client, tts) for _ in range(5)]
    assert max(found["cancel_s"]) < 0.3, found["cancel_s"]
    return found


def request(model: str, **fields: Any) -> Json:
    return {"model": model, "input": TEXT, "response_format": "pcm", "max_frames": 1200, **fields}


async def latency(client: httpx2.AsyncClient) -> float:
    """Median time of a GET through Ray's proxy, milliseconds."""
    times = []
    for _ in range(50):
        started = time.perf_counter()
        (await client.get("/v1/models")).raise_for_status()
        times.append(1000 * (time.perf_counter() - started))
    return round(statistics.median(times), 1)


async def stream(client: httpx2.AsyncClient, model: str, begun: asyncio.Event) -> bytes | None:
    """What a slow reader receives; None if the stream ends in an error."""
    received = b""
    try:
        async with client.stream("POST", "/v1/audio/speech", json=request(model)) as response:
            response.raise_for_status()
            async for piece in response.aiter_raw():
                received += piece
                begun.set()
                await asyncio.sleep(0.005)
    except httpx2.HTTPError:
        return None
    return received


async def node_is_killed(client: httpx2.AsyncClient, model: str, expected: bytes, kill: Any) -> Json:
    begun = [asyncio.Event() for _ in range(STREAMS)]
    streams = [asyncio.create_task(stream(client, model, each)) for each in begun]
    await asyncio.gather(*(each.wait() for each in begun))
    await asyncio.sleep(0.5)
    assert not any(each.done() for each in streams), "a stream ended before the node was killed"
    started = time.perf_counter()
    await asyncio.to_thread(kill)
    killed_s = since(started)
    served, retried = [], 0
    for _ in range(NEW):
        answer = await client.post("/v1/audio/speech", json=request(model, max_frames=3))
        if answer.status_code == 500:  # Ray has not noticed yet; the clients of OpenAI send it again
            retried += 1
            answer = await client.post("/v1/audio/speech", json=request(model, max_frames=3))
        served.append(answer.status_code)
    results = await asyncio.gather(*streams)
    whole = [each for each in results if each is not None]
    assert all(is_same(each, expected) for each in whole), "a stream that did not fail is not whole"
    assert served.count(200) == NEW, served
    assert 0 < len(whole) < STREAMS, f"{len(whole)} of {STREAMS} streams are whole"
    return {
        "kill_s": killed_s,
        "streams": STREAMS,
        "failed": STREAMS - len(whole),
        "whole": len(whole),
        "served": f"{served.count(200)} of {NEW}",
        "retried": retried,
    }


def is_same(found: bytes, expected: bytes) -> bool:
    """Up to one step of 16 bits: sums of a batch have another order."""
    if len(found) != len(expected):
        return False
    difference = np.frombuffer(found, "<i2").astype(int) - np.frombuffer(expected, "<i2")
    return bool(np.abs(difference).max() <= 1)


async def socket_keeps_its_replica(client: httpx2.AsyncClient, tts: str, stt: str) -> Json:
    """Two utterances of one socket, while other requests run. The states of a session are in one replica."""
    spoken = read_sentences(HELD_OUT, 1)[0]
    sound = pcm16(spoken.samples(RATE))
    alone = await utterances(stt, sound)
    speech = [client.post("/v1/audio/speech", json=request(tts, max_frames=100)) for _ in range(4)]
    beside, answers = await asyncio.gather(utterances(stt, sound), asyncio.gather(*speech))
    assert alone == beside == [spoken.text] * 2, f"expected {spoken.text!r} twice: {alone}, {beside}"
    assert all(each.status_code == 200 for each in answers)
    return {"utterances": len(beside), "characters": len(beside[0]), "requests_beside": len(answers)}


async def utterances(stt: str, sound: bytes) -> list[str]:
    found = []
    async with websockets.connect(SOCKET + stt) as socket:
        form = {"audio": {"input": {"format": {"type": "audio/pcm", "rate": RATE}}}}
        await socket.send(json.dumps({"type": "session.update", "session": form}))
        for _ in range(2):
            for start in range(0, len(sound), 2560):
                piece = base64.b64encode(sound[start : start + 2560]).decode()
                await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": piece}))
                await asyncio.sleep(0.02)
            await socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
            while True:
                message = json.loads(await asyncio.wait_for(socket.recv(), 60))
                assert message["type"] != "error", message
                if message["type"].endswith("transcription.completed"):
                    found.append(message["transcript"])
                    break
    return found


async def cancel(client: httpx2.AsyncClient, model: str) -> float:
    """Seconds from the end of a connection until its slot is free, on the replica that is left."""
    async with client.stream("POST", "/v1/audio/speech", json=request(model, max_frames=4000)) as response:
        pieces = response.aiter_raw()  # closes the response when nothing refers to it
        await anext(pieces)
        assert await metric(client, "voxport_slots_busy", model) == 1
    started = time.perf_counter()
    while await metric(client, "voxport_slots_busy", model):
        assert time.perf_counter() - started < 10, "the slot is not free"
    return since(started)


def since(started: float) -> float:
    return round(time.perf_counter() - started, 3)


if __name__ == "__main__":
    main()
