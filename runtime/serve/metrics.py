"""The metrics of /metrics. No label comes from the text of a request."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "voxport"  # of all names
PASS_SECONDS = (0.01, 0.02, 0.04, 0.06, 0.08, 0.12, 0.2, 0.4, 0.8, 1.6)
WAIT_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6)


class Metrics:
    """One set of metrics per server, so that tests and servers in one process do not share them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter(
            "requests", "Finished requests.", ("route", "code"), namespace=PREFIX, registry=registry
        )
        self.waiting = Gauge(
            "waiting", "Requests that wait for a slot.", ("bundle",), namespace=PREFIX, registry=registry
        )
        self.slots_busy = Gauge(
            "slots_busy", "Occupied slots.", ("bundle",), namespace=PREFIX, registry=registry
        )
        self.slots = Gauge(
            "slots",
            "Slots, or live streams that the machine can follow.",
            ("bundle",),
            namespace=PREFIX,
            registry=registry,
        )
        self.frames = Counter(
            "frames", "Frames of 80 ms that were computed.", ("bundle",), namespace=PREFIX, registry=registry
        )
        self.pass_seconds = Histogram(
            "pass_seconds",
            "Time of one pass over all slots.",
            ("bundle",),
            buckets=PASS_SECONDS,
            namespace=PREFIX,
            registry=registry,
        )
        self.first_sound = Histogram(
            "first_sound_seconds",
            "Time from a request to its first samples.",
            ("bundle",),
            buckets=WAIT_SECONDS,
            namespace=PREFIX,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "queue_seconds",
            "Time that a request waited for a slot.",
            ("bundle",),
            buckets=WAIT_SECONDS,
            namespace=PREFIX,
            registry=registry,
        )
        self.cancelled = Counter(
            "cancelled", "Requests that ended early.", ("reason",), namespace=PREFIX, registry=registry
        )
        self.sockets = Gauge("sockets", "Open sockets.", namespace=PREFIX, registry=registry)
        self.late_seconds = Counter(
            "late_seconds",
            "Time by which live audio was transcribed late.",
            ("bundle",),
            namespace=PREFIX,
            registry=registry,
        )
        self.buffer_bytes = Gauge(
            "buffer_bytes", "Samples that are not sent yet.", namespace=PREFIX, registry=registry
        )
