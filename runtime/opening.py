"""Opens a bundle as the task of its family. The steps that all families share are here."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import MANIFEST, NO_LICENCE_NEEDED, Bundle
from voxport.bundle.passed_checks import check_hashes_once
from voxport.runtime.engines import ENGINES, check_installed, open_engine
from voxport.runtime.engines.base import DEFAULT, EngineOptions
from voxport.runtime.families import FAMILIES, open_family, read_constants

if TYPE_CHECKING:
    from voxport.runtime.forced_alignment import ForcedAlignment
    from voxport.runtime.speech_to_text import SpeechToText
    from voxport.runtime.text_to_speech import TextToSpeech

Task = TypeVar("Task")
PACKAGED = Path(__file__).parent.parent / "bundles"  # a wheel has them; in a clone, `make wheel` exports them
IS_CLONE = (PACKAGED.parents[2] / "artifacts" / "checkpoints").is_dir()  # has the models to export them from
log = logging.getLogger(__name__)


def open_bundle(
    path: Path | str, options: EngineOptions = DEFAULT, check_hashes: bool = True
) -> TextToSpeech | SpeechToText | ForcedAlignment:
    """The task of the bundle's family, on the engine of its target.

    `check_hashes` compares the hash of every file; files that are unchanged since it was done before are not
    read again. Core AI bundles need it. Raises UsageError, or IntegrityError that names the damaged file.
    """
    return cast(
        "TextToSpeech | SpeechToText | ForcedAlignment", open_task(object, path, options, check_hashes)
    )


def open_task(
    task: type[Task], path: Path | str, options: EngineOptions = DEFAULT, check_hashes: bool = True
) -> Task:
    """`open_bundle` for a bundle of one task: `TextToSpeech`, `SpeechToText` or `ForcedAlignment`.

    Raises UsageError on any other bundle.
    """
    bundle = Bundle(path)
    check_task(bundle, task)
    family = open_family(bundle.job.family)
    constants = read_constants(bundle.job)  # raises before the hashes are computed, which takes seconds
    if not check_hashes and (engine := ENGINES.get(bundle.job.target)) and engine.needs_hashes:
        raise UsageError(
            f"check_hashes: {bundle.folder}: the engine for {bundle.job.target} aborts on damaged files; "
            "leave it out",
            field="check_hashes",
        )
    if check_hashes:
        check_hashes_once(bundle)
    else:
        bundle.check_unlisted()
    for remark in bundle.remarks():
        log.debug("%s: %s", bundle.folder, remark)
    if not bundle.is_verified:
        log.warning("%s: this bundle is %s", bundle.folder, bundle.manifest.verification.status)
    if bundle.job.licence == NO_LICENCE_NEEDED:
        log.info("%s: its weights are random, so neither speech nor words mean anything", bundle.folder)
    check_engine(bundle)
    return cast(Task, family.open(bundle, open_engine(bundle, options), constants))


def task_of(bundle: Bundle) -> type[object]:
    """The abstract task of a bundle. Raises UsageError if its family is unknown."""
    family = open_family(bundle.job.family)
    return family.task_of(bundle.job) if family.task_of else family.task


def check_task(bundle: Bundle, task: type[object]) -> None:
    """Raises UsageError if the bundle has another task."""
    if not issubclass(found := task_of(bundle), task):
        raise UsageError(f"{bundle.folder}: is a bundle for {_words(found)}, expected one for {_words(task)}")


def open_embedded(task: type[Task], options: EngineOptions = DEFAULT) -> Task:
    """The embedded model for `TextToSpeech` or `SpeechToText`. Raises UsageError if it is not installed."""
    folder = packaged_bundle(task)
    if folder is None:
        raise UsageError(
            f"{PACKAGED}: has no bundle for {_words(task)}; run `make wheel`, or install a wheel"
        )
    return open_task(task, folder, options)


def packaged_bundle(task: type[object]) -> Path | None:
    """The folder of the bundle for a task that is installed with voxport; None if there is none."""
    folders = {name: PACKAGED / f"{name.replace('_', '-')}-tiny" for name in FAMILIES}
    there = [name for name, folder in folders.items() if (folder / MANIFEST).is_file()]
    return next((folders[name] for name in there if issubclass(open_family(name).task, task)), None)


def check_engine(bundle: Bundle) -> None:
    """Runs the components in another process, once, if the engine may abort.

    Raises EngineUnavailable, UsageError, or IntegrityError on a damaged program.
    """
    check_installed(bundle.job.target, str(bundle.folder))
    if ENGINES[bundle.job.target].needs_trial:
        from voxport.runtime.engines.trial import trial_run

        trial_run(bundle)


def _words(task: type[object]) -> str:
    """`TextToSpeech` -> `text to speech`."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in task.__name__).strip()
