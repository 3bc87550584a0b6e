"""Requests for speech and sockets whose clients leave, and what the server has before and after.

    PYTHONPATH=tests:tools python -m load.cancels -o cancels.json

Fails if more is left. The server runs in this process, so that its tasks, threads and descriptors can be
counted.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from support.serve.http_server import RunningServer, Tasks, running, wait_until
from support.serve.leaving import leave, leave_sockets, settled
from support.serve.loud_to_text import LoudToText
from support.serve.realtime_client import OPENAI
from support.serve.tone_speech import ToneSpeech

from load.server import machine
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.transcription.worker import TranscriptionWorker

COUNT, FIRST = 1000, 60  # the first ones start the threads of the server
PASS_S, SLOTS = 0.005, 2  # a text of 200 frames is never spoken to its end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT, help=f"requests, and sockets (default: {COUNT})")
    parser.add_argument("-o", type=Path, help="JSON to write")
    arguments = parser.parse_args()
    found = run(arguments.count)
    text = json.dumps(found, indent=1) + "\n"
    if arguments.o:
        arguments.o.parent.mkdir(parents=True, exist_ok=True)
        arguments.o.write_text(text)
    print(text, end="")
    sys.exit(1 if found["left"] else 0)


def run(count: int) -> dict[str, Any]:
    load = round(os.getloadavg()[0], 1)  # other work on the machine
    task = ToneSpeech(pass_s=PASS_S)
    tasks: Tasks = {"tone": task, "loud": LoudToText()}
    with running(tasks, Limits(jobs_per_key=100, waiting=100), slots=SLOTS) as server:
        server.models.transcription_workers["loud"].live_slots = 100
        leave(server, FIRST)
        leave_sockets(server, FIRST)
        before, first_cancelled, first_ended = counts(server, task), cancelled(server), ended_sockets(server)
        started = time.monotonic()
        leave(server, count)
        wait_until(lambda: is_idle(server), 30)
        requests = cancelled(server) - first_cancelled
        leave_sockets(server, count)
        after = counts(server, task)
        seconds = time.monotonic() - started
        sockets = ended_sockets(server) - first_ended
    left = {name: after[name] - before[name] for name in before if after[name] > before[name]}
    for name, ended in (("requests", requests), ("sockets", sockets)):
        if ended != count:
            left[name] = count - ended
    return {
        "machine": machine(),
        "load_average_before": load,
        "server": f"{SLOTS} slots, {1000 * PASS_S:g} ms for a pass",
        "requests": count,
        "cancelled": requests,
        "sockets": count,
        "ended_sockets": sockets,
        "seconds": round(seconds, 1),
        "before": before,
        "after": after,
        "left": left,
    }


def is_idle(server: RunningServer) -> bool:
    workers: tuple[SpeechWorker | TranscriptionWorker, ...] = (
        *server.models.speech_workers.values(),
        *server.models.transcription_workers.values(),
    )
    return not server.connections and all(worker.is_idle for worker in workers)


def cancelled(server: RunningServer) -> int:
    """Requests, and utterances of sockets."""
    return round(server.metric("cancelled_total", reason="client"))


def ended_sockets(server: RunningServer) -> int:
    return round(server.metric("requests_total", route=OPENAI.partition("?")[0], code="101"))


def counts(server: RunningServer, task: ToneSpeech) -> dict[str, int]:
    """When nothing runs: slots, jobs, bytes of samples, sockets, and resources of the process."""
    wait_until(lambda: is_idle(server), 30)
    worker, listener = server.models.speech_workers["tone"], server.models.transcription_workers["loud"]
    resources = settled(worker)
    return {
        "slots": len(task.running),
        "running_jobs": len(worker._running),
        "waiting_jobs": len(worker._waiting),
        "open_sockets": round(server.metric("sockets")),
        "live_streams": len(listener._live),
        "buffer_bytes": worker._pool.used,
        **resources,
    }


if __name__ == "__main__":
    main()
