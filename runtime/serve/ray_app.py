"""The server as an application of Ray Serve.

    serve run runtime.serve.ray_app:build bundle=TTS

Each replica is a whole server with its own copy of the bundles, without uvicorn: Ray's proxy receives the
requests. A response, or a socket, stays on the replica where it began.
"""

import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError
from starlette.types import ASGIApp

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.serve.address import check_hosts, check_origins
from voxport.runtime.serve.fields import wrong_field
from voxport.runtime.serve.http.access import Keys, read_keys
from voxport.runtime.serve.http.app import build_app
from voxport.runtime.serve.http.server import leave_out_loaded_objects
from voxport.runtime.serve.ignored import UNKNOWN
from voxport.runtime.serve.limits import LIMITS, Limits
from voxport.runtime.serve.models import Models, open_bundles
from voxport.runtime.speech_request import DEFAULT_SLOTS

EXTRA_REQUESTS = 64  # requests that Ray lets through beyond ours, so that this server refuses them
HEALTH_PERIOD_S = 5.0
POLL_S = 0.05  # between checks whether the engines have run
UPSCALE_S, DOWNSCALE_S = 10.0, 300.0
AtLeast1 = Annotated[int, Field(ge=1)]


def _as_list(value: object) -> object:
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class RayOptions(Limits):
    """Arguments of `build`, with the fields of `Limits`.

    `bundle`, `allow_origin` and `allow_host` are lists, or texts with commas. `cpus` are the processors of a
    replica, and the threads of its engines. `replicas` is the maximum number of replicas.
    """

    bundle: Annotated[Texts, Field(min_length=1)]
    keys: Path | None = None
    allow_origin: Texts = ()
    allow_host: Texts = ()
    slots: Annotated[int, Field(ge=1, le=64)] = DEFAULT_SLOTS
    check: bool = True
    strict: bool = False
    cpus: AtLeast1 = 1
    min_replicas: AtLeast1 = 1
    replicas: AtLeast1 = 1


def parse_options(arguments: Json) -> RayOptions:
    """Paths become absolute, because replicas run in other folders. Raises UsageError."""
    try:
        found = RayOptions.model_validate(arguments)
    except ValidationError as error:
        wrong = wrong_field(error)
        own = (name for name in RayOptions.model_fields if name not in Limits.model_fields)
        expected = f"; expected one of {', '.join((*own, *LIMITS))}" if wrong.code == UNKNOWN else ""
        raise UsageError(f"{wrong.message}{expected}", field=wrong.param) from None
    check_origins(found.allow_origin)
    check_hosts(found.allow_host)
    if found.replicas < found.min_replicas:
        raise UsageError(
            f"replicas: {found.replicas} is less than min_replicas {found.min_replicas}", field="replicas"
        )
    bundle = tuple(str(Path(folder).absolute()) for folder in found.bundle)
    keys = found.keys.absolute() if found.keys else None
    return found.model_copy(update={"bundle": bundle, "keys": keys})


def deployment_options(options: RayOptions) -> Json:
    """Options of Ray's deployment. Its limits are above ours: Ray refuses with plain text."""
    max_requests = options.connections + EXTRA_REQUESTS
    return {
        "name": "voxport",
        "max_ongoing_requests": max_requests,
        "max_queued_requests": max_requests * options.replicas,  # counts those on their way to a replica, too
        "backpressure_config": {"status_code": 503, "retry_after_s": 1},
        "autoscaling_config": {
            "min_replicas": options.min_replicas,
            "max_replicas": options.replicas,
            "target_ongoing_requests": options.slots,
            "upscale_delay_s": UPSCALE_S,
            "downscale_delay_s": DOWNSCALE_S,
        },
        "ray_actor_options": {"num_cpus": options.cpus},
        "health_check_period_s": HEALTH_PERIOD_S,
        "graceful_shutdown_timeout_s": options.drain_s,
    }


class Replica:
    """One server in a process of Ray. `serve.ingress` calls the methods."""

    _models: Models | None = None  # until the bundles are opened

    def __init__(self, options: RayOptions):
        """Opens the bundles and runs each one once: Ray sends requests to a replica from then on.

        Raises UsageError, IntegrityError, and RuntimeError if an engine fails.
        """
        keys = read_keys(options.keys) if options.keys else Keys()
        folders = [Path(folder) for folder in options.bundle]
        tasks = open_bundles(folders, EngineOptions(threads=options.cpus), options.check)
        self._models = models = Models(tasks, options, options.slots, is_strict=options.strict)
        models.start()
        while not models.is_ready:
            self.check_health()
            time.sleep(POLL_S)
        self._app = build_app(models, keys, options.allow_origin, options.allow_host)
        leave_out_loaded_objects()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._app

    def check_health(self) -> None:
        """Raises RuntimeError if an engine has failed; Ray then replaces the replica."""
        if self._models is None or self._models.has_failed:
            raise RuntimeError("an engine of this replica has failed")

    def __del__(self) -> None:
        if self._models is not None:  # else `__init__` has raised
            self._models.drain(0)  # requests have ended: Ray waits for them before


def build(arguments: Json) -> Any:
    """The application for `serve run` and `serve.run`. Raises UsageError.

    `arguments` are fields of `RayOptions` and `Limits`. Any: Ray is not installed when types are checked.
    """
    options = parse_options(arguments)
    from ray import serve

    return serve.deployment(**deployment_options(options))(serve.ingress()(Replica)).bind(options)
