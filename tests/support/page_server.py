"""A server with two tasks without a model: a tone as long as its text, and a word for each loud sound."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import uvicorn

from bundle.errors import UsageError
from runtime.audio.captions import Word
from runtime.batching import BatchedDecoder, Fill, RowLimit, SlotOutput, Status
from runtime.serve.app import build_app
from runtime.serve.keys import Keys
from runtime.serve.limits import Limits
from runtime.serve.metrics import Metrics
from runtime.serve.models import Models
from runtime.serve.server import Server
from runtime.speech_to_text import SpeechToText, TranscriptDelta, Transcription
from runtime.text_to_speech import SpeechRequest, TextToSpeech

RATE, FRAME, HERTZ, LEVEL = 24000, 1920, 440, 0.5
LISTEN_RATE, BLOCK, LOUD = 16000, 1280, 0.05
BROKEN = "Broken"  # a text that begins so fails after five frames
NAMES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class ToneSlots:
    """A frame of a tone for each character of a text. A frame takes `pace_s`."""

    def __init__(self, slots: int, pace_s: float):
        self.slots, self._pace_s = slots, pace_s
        self._left: dict[int, int] = {}  # frames, by slot
        self._at: dict[int, int] = {}  # samples so far
        self._broken: set[int] = set()

    def prepare(self, request: SpeechRequest) -> Fill:
        if request.instruct:
            raise UsageError("instruct: this model takes none", field="instruct")

        def fill(slot: int, limit: RowLimit) -> Iterator[None]:
            self._broken.discard(slot)
            if request.text.startswith(BROKEN):
                self._broken.add(slot)
            self._left[slot], self._at[slot] = min(len(request.text), request.max_frames), 0
            return iter(())

        return fill

    def feed(self, count: int) -> None: ...

    def decode(self, count: int) -> None:
        time.sleep(self._pace_s)

    def take(self, slot: int) -> SlotOutput:
        times = (self._at[slot] + np.arange(FRAME)) / RATE
        self._at[slot] += FRAME
        if slot in self._broken and self._at[slot] > 5 * FRAME:
            raise RuntimeError("broken")
        self._left[slot] -= 1
        samples = (LEVEL * np.sin(2 * np.pi * HERTZ * times)).astype(np.float32)
        return SlotOutput(samples, None if self._left[slot] else Status.END)

    def free(self, slot: int) -> None:
        del self._left[slot], self._at[slot]

    def move(self, source: int, target: int) -> None:
        self._left[target], self._at[target] = self._left.pop(source), self._at.pop(source)
        if source in self._broken:
            self._broken = self._broken - {source} | {target}


class ToneTask(TextToSpeech):
    """The voices sound the same."""

    sample_rate, samples_per_frame, max_slots = RATE, FRAME, 4

    def __init__(self, pace_s: float):
        self._pace_s = pace_s

    def usual_frames(self, text: str) -> float:
        return float(len(text))

    def voices(self) -> dict[str, int]:
        return {"alto": 1, "bass": 1}

    def batched(self, slots: int) -> BatchedDecoder[SpeechRequest]:
        return BatchedDecoder(ToneSlots(slots, self._pace_s))


class CountingTranscription:
    """Names the number of each loud sound at its end."""

    def __init__(self) -> None:
        self._rest, self._blocks, self._count = np.zeros(0, np.float32), 0, 0
        self._since: int | None = None  # the block in which the current sound began

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        self._rest = np.concatenate((self._rest, samples))
        while len(self._rest) >= BLOCK:
            block, self._rest = self._rest[:BLOCK], self._rest[BLOCK:]
            yield from self._hear(float(np.sqrt(np.mean(block**2))) > LOUD)

    def finish(self) -> Iterator[TranscriptDelta]:
        yield from self._hear(False)

    def _hear(self, is_loud: bool) -> Iterator[TranscriptDelta]:
        if is_loud and self._since is None:
            self._since = self._blocks
        elif not is_loud and self._since is not None:
            name, start = NAMES[self._count % len(NAMES)], self._since * BLOCK / LISTEN_RATE
            self._count, self._since = self._count + 1, None
            yield TranscriptDelta(f" {name}", [Word(name, start, self._blocks * BLOCK / LISTEN_RATE)])
        self._blocks += 1


class CountingTask(SpeechToText):
    """Counts loud sounds."""

    sample_rate, delays_ms, max_chunk_tokens = LISTEN_RATE, (480,), 10

    def check_live(self) -> None: ...

    def begin(
        self,
        delay_ms: int | None = None,
        live: bool = False,
        chunk_tokens: int | None = None,
        blank_penalty: bool = False,
    ) -> Transcription:
        return CountingTranscription()


class PageServer:
    """A running server. `models` and `metrics` show what it does."""

    def __init__(self, port: int, models: Models, metrics: Metrics):
        self.port, self.models, self.metrics = port, models, metrics
        self.url = f"http://127.0.0.1:{port}/"

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"voxport_{name}", labels) or 0.0


@contextmanager
def running_server(
    keys: Keys | None = None, pace_s: float = 0.02, origin: str | None = None
) -> Iterator[PageServer]:
    """Serves both tasks on a free port of the loopback interface. `origin` has %d for the port."""
    limits, metrics = Limits(), Metrics()
    models = Models({"tone": ToneTask(pace_s), "count": CountingTask()}, limits, metrics)
    models.start()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    app = build_app(models, metrics, limits, keys or Keys(), [origin % port] if origin else [])
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="websockets-sansio", lifespan="off")
    server = Server(config, models, drain_s=1)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield PageServer(port, models, metrics)
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        models.drain(0)
        listener.close()
