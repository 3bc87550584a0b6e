"""Runs a bundle in a process of its own before it is used for the first time.

An engine that aborts on a damaged program ends the process that called it. `python -m runtime.engines.trial
BUNDLE` loads every component and calls it once.
"""

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from voxport.bundle.errors import IntegrityError, VoxportError
from voxport.bundle.manifest import Bundle
from voxport.bundle.passed_checks import PassedCheck
from voxport.bundle.spec import Signature
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.base import Arrays

PACKAGE_ROOT = Path(__file__).parents[3]  # has `voxport`
TIMEOUT_S = 600  # far above the load of the largest bundle; a program may also run without end
log = logging.getLogger(__name__)


def trial_run(bundle: Bundle) -> None:
    """Returns immediately if these files had a trial run on this machine.

    Raises IntegrityError if the engine aborts or does not end, and an error of the engine as it is.
    """
    passed = PassedCheck("tried", bundle)
    if passed.is_known:
        return
    log.info("%s: first use: it is tried in another process", bundle.folder)
    command, environment = python_process(__name__, str(bundle.folder.absolute()))
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise IntegrityError(
            f"{bundle.folder}: a program does not end; fetch or export the bundle again"
        ) from None
    if done.returncode < 0:
        raise IntegrityError(
            f"{bundle.folder}: a program is damaged: the engine ended with signal {-done.returncode}; "
            "fetch or export the bundle again"
        )
    if done.returncode:
        log.info("%s: the trial failed: %s", bundle.folder, done.stderr.decode(errors="replace")[-500:])
        if done.stdout:
            kind = IntegrityError if done.returncode == IntegrityError.exit_code else VoxportError
            raise kind(done.stdout.decode(errors="replace"))
    else:
        passed.remember()


def python_process(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of another Python, which has the paths of this one.

    With -P, Python imports no modules from the current folder, which may be the bundle's.
    """
    paths = os.pathsep.join([str(PACKAGE_ROOT), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    return [sys.executable, "-P", "-m", module, *arguments], environment


def call_all(bundle: Bundle) -> None:
    """Calls every component once with zeros of the smallest shapes, and moves a row of each cache."""
    stream = open_engine(bundle).stream()
    for name, signature in stream.signatures.items():
        stream.run(name, _zeros(signature))
    stream.load(stream.save(positions=1))
    for name, signature in stream.signatures.items():
        if signature.states:
            stream.run(name, _zeros(signature))


def _zeros(signature: Signature) -> Arrays:
    return {
        spec.name: np.zeros(
            [signature.dims[size][0] if isinstance(size, str) else size for size in spec.shape], spec.dtype
        )
        for spec in signature.inputs
    }


if __name__ == "__main__":
    try:
        call_all(Bundle(Path(sys.argv[1])))
    except VoxportError as found:
        print(found, end="")
        sys.exit(found.exit_code)
