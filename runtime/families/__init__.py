"""The table of model families that the runtime can run. A family is imported when a bundle needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pydantic import ValidationError

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle, ExportJob, FamilyConstants, first_fault

if TYPE_CHECKING:
    from voxport.runtime.engines.base import Engine
    from voxport.runtime.families.workload import BenchWorkload, TraceWorkload, VerificationWorkload
    from voxport.runtime.forced_alignment import ForcedAlignment
    from voxport.runtime.speech_to_text import SpeechToText
    from voxport.runtime.text_to_speech import TextToSpeech
    from voxport.runtime.vectors import VectorWorkload

FAMILIES = {  # name: the module that defines the object FAMILY
    "voxtral_tts": "voxport.runtime.families.voxtral_tts.task",
    "voxtral_realtime": "voxport.runtime.families.voxtral_realtime.task",
    "qwen3_tts": "voxport.runtime.families.qwen3_tts.task",
    "qwen3_asr": "voxport.runtime.families.qwen3_asr.task",
}
Constants = TypeVar("Constants", bound=FamilyConstants)


@dataclass(frozen=True)
class Call:
    """Names of the inputs, outputs and dimensions of a component that the runtime uses."""

    inputs: frozenset[str]
    outputs: frozenset[str]
    dims: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RuntimeFamily(Generic[Constants]):
    """A model family.

    name: key of the table of families.
    task: the abstract task that `open` returns.
    calls(job): the components that the runtime calls; they are checked when a bundle is opened.
    constants: the record of the family's constants, which `model` writes.
    voices(bundle): names of the bundle's voices, and the prompt rows of each; empty without voices.
    open(bundle, engine, constants): the task on a bundle whose calls were checked (see `runtime.opening`);
        raises UsageError if the bundle lacks tokenizer files that the task needs.
    workloads: the module that defines TRACE, VERIFICATION and BENCH. A bundle that runs does not import it.
    server_options: export options of bundles for a server, if they differ from the defaults.
    task_of(job): the task of a bundle, if bundles of the family differ.
    """

    name: str
    task: type[TextToSpeech] | type[SpeechToText]
    calls: Callable[[ExportJob], Mapping[str, Call]]
    constants: type[Constants]
    voices: Callable[[Bundle], dict[str, int]]
    open: Callable[[Bundle, Engine, Constants], TextToSpeech | SpeechToText | ForcedAlignment]
    workloads: str
    server_options: Mapping[str, bool | int | str] = field(default_factory=dict)
    task_of: Callable[[ExportJob], type[object]] | None = None

    @property
    def trace(self) -> TraceWorkload[Constants]:
        return cast("TraceWorkload[Constants]", import_module(self.workloads).TRACE)

    @property
    def vectors(self) -> VectorWorkload[Constants] | None:
        """None if the family has no module `vectors` beside its workloads."""
        name = f"{self.workloads.rpartition('.')[0]}.vectors"
        found = import_module(name).VECTORS if find_spec(name) else None
        return cast("VectorWorkload[Constants] | None", found)

    @property
    def verification(self) -> VerificationWorkload[Constants]:
        return cast("VerificationWorkload[Constants]", import_module(self.workloads).VERIFICATION)

    @property
    def bench(self) -> BenchWorkload[Constants]:
        return cast("BenchWorkload[Constants]", import_module(self.workloads).BENCH)


def open_family(name: str) -> RuntimeFamily[Any]:  # Any: each family has constants of its own type
    """Raises UsageError that lists the families, or if the name of one is not its key."""
    if name not in FAMILIES:
        raise UsageError(
            f"manifest.json: family {name!r} is unknown; this runtime supports {', '.join(FAMILIES)}"
        )
    found = cast(RuntimeFamily[Any], import_module(FAMILIES[name]).FAMILY)
    if found.name != name:
        raise UsageError(f"{FAMILIES[name]}: FAMILY.name is {found.name!r}, expected {name!r}, its key")
    return found


def read_constants(job: ExportJob) -> Any:  # Any: each family has constants of its own type
    """The constants of a job that has every component, input and output that its family calls.

    Raises UsageError or IntegrityError.
    """
    family = open_family(job.family)
    signatures = {entry.name: entry.signature for entry in job.components}
    for name, call in family.calls(job).items():
        if name not in signatures:
            raise IntegrityError(f"manifest.json: components: {name} is missing; export the bundle again")
        signature = signatures[name]
        for what, needed, found in (
            ("input", call.inputs, {spec.name for spec in signature.inputs}),
            ("output", call.outputs, {spec.name for spec in signature.outputs}),
            ("dimension", call.dims, signature.dims.keys()),
        ):
            if missing := needed - found:
                raise IntegrityError(
                    f"manifest.json: component {name} has no {what} {min(missing)}; export the bundle again"
                )
    return parse_constants(family.constants, job.constants)


def parse_constants(record: type[Constants], values: Json) -> Constants:
    """The constants of a manifest. Raises IntegrityError that names a wrong one."""
    try:
        return record.model_validate(values)
    except ValidationError as error:
        raise IntegrityError(
            f"manifest.json: constants: {first_fault(error)}; export the bundle again"
        ) from None


def tokenizer_paths(bundle: Bundle) -> list[Path]:
    """The tokenizer files of a bundle. Raises UsageError without any."""
    if not bundle.manifest.tokenizer:
        raise UsageError(
            f"{bundle.folder}: the bundle has no tokenizer; export from a checkpoint with its tokenizer files"
        )
    return [bundle.folder / name for name in bundle.manifest.tokenizer]
