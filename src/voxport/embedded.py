"""The bundles of the embedded models, for commands that were given none."""

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path


def make_bundle_optional(parser: argparse.ArgumentParser, default: str) -> None:
    """Lets `--bundle` of a command of the runtime be left out."""
    for action in parser._actions:
        if action.dest == "bundle":
            action.required = False
            action.help = f"{action.help} (default: {default}, exported on first use, which takes minutes)"


def embedded_bundle(task: str) -> Path:
    """Returns the folder of the embedded model for a task, one of `model.families.DEFAULT_OF_TASK`.

    Export output goes to stderr.
    """
    from voxport.export.embedded_bundle import embedded_bundle as find  # imports the exporter
    from voxport.model.embedded import embedded_default
    from voxport.model.families import DEFAULT_OF_TASK

    family = DEFAULT_OF_TASK[task]
    with redirect_stdout(sys.stderr):
        return find(family, embedded_default(family))
