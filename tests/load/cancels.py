"""Requests for speech whose clients leave, and what the server has before and after. Fails if more is left.

    cd tests && PYTHONPATH=.. python -m load.cancels -o ../docs/bench/serving/cancels.json

The server runs in this process, so that its tasks, threads and descriptors can be counted.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from support.serve.http_server import RunningServer, running
from support.serve.leaving import leave, settled
from support.serve.tone_speech import ToneSpeech

from runtime.machine import describe_machine
from runtime.serve.limits import Limits

COUNT, FIRST = 1000, 60  # the first requests start the threads of the server
PASS_S, SLOTS = 0.005, 2  # a text of 200 frames is never spoken to its end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT, help=f"requests (default: {COUNT})")
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
    load = round(os.getloadavg()[0], 1)  # of other work on the machine
    task = ToneSpeech(pass_s=PASS_S)
    with running({"tone": task}, Limits(jobs_per_key=100, waiting=100), slots=SLOTS) as server:
        leave(server, FIRST)
        before = counts(server, task)
        started = time.monotonic()
        leave(server, count)
        after = counts(server, task)
        seconds = time.monotonic() - started
        cancelled = round(server.metric("cancelled_total", reason="client")) - FIRST
    left = {name: after[name] - before[name] for name in before if after[name] > before[name]}
    if cancelled != count:
        left["requests"] = count - cancelled
    return {
        "machine": describe_machine(None, "uvicorn"),
        "load_average_before": load,
        "server": f"{SLOTS} slots, {1000 * PASS_S:g} ms for a pass",
        "requests": count,
        "cancelled": cancelled,
        "seconds": round(seconds, 1),
        "before": before,
        "after": after,
        "left": left,
    }


def counts(server: RunningServer, task: ToneSpeech) -> dict[str, int]:
    """When nothing is spoken: slots, jobs, bytes of samples, and resources of the process."""
    worker = server.models.speech_workers["tone"]
    resources = settled(worker)
    return {
        "slots": len(task.running),
        "running_jobs": len(worker._running),
        "waiting_jobs": len(worker._waiting),
        "buffer_bytes": worker._pool.used,
        **resources,
    }


if __name__ == "__main__":
    main()
