"""The metrics of /metrics. No label comes from the text of a request."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "voxport"  # all names begin with it
BUNDLE = ("bundle",)  # the label of most metrics
PASS_SECONDS = (0.01, 0.02, 0.04, 0.06, 0.08, 0.12, 0.2, 0.4, 0.8, 1.6)
WAIT_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6)


class Metrics:
    """One set of metrics per server, so that tests and servers in one process do not share them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace=PREFIX, registry=self.registry)
        gauge = partial(Gauge, namespace=PREFIX, registry=self.registry)
        histogram = partial(Histogram, namespace=PREFIX, registry=self.registry)
        self.requests = counter("requests", "Finished requests.", ("route", "code"))
        self.waiting = gauge("waiting", "Requests that wait for a slot.", BUNDLE)
        self.slots_busy = gauge("slots_busy", "Occupied slots.", BUNDLE)
        self.slots = gauge("slots", "Slots, or live streams that fit the speed of the machine.", BUNDLE)
        self.frames = counter("frames", "Frames of 80 ms that were computed.", BUNDLE)
        self.pass_seconds = histogram(
            "pass_seconds", "Time of one pass over all slots.", BUNDLE, buckets=PASS_SECONDS
        )
        self.first_sound = histogram(
            "first_sound_seconds",
            "Time from the moment a request is queued to its first samples.",
            BUNDLE,
            buckets=WAIT_SECONDS,
        )
        self.queue_seconds = histogram(
            "queue_seconds", "Time that a request waited for a slot.", BUNDLE, buckets=WAIT_SECONDS
        )
        self.cancelled = counter("cancelled", "Requests that ended early.", ("reason",))
        self.sockets = gauge("sockets", "Open sockets.")
        self.late_seconds = counter("late_seconds", "Time by which live audio was transcribed late.", BUNDLE)
        self.buffer_bytes = gauge("buffer_bytes", "Samples that are not sent yet.")
