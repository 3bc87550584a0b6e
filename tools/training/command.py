"""The command line of a training: its stages, and the arguments that all of them have."""

import argparse
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from tools.training.loop import Schedule

WRITE = "write"  # the stage that writes the checkpoint
Stages = Mapping[str, Callable[[argparse.Namespace], None]]


def run_command(description: str | None, stages: Stages, steps: str, rate: float, batch: int) -> None:
    """Runs the stage that the command line names. `steps` says how long the stages are by default.

    A missing file, or one of another training, is one line on stderr.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stage", choices=stages)
    state = "checkpoints and logs; outside of the repository"
    parser.add_argument("--folder", type=Path, required=True, help=state)
    parser.add_argument("--threads", type=int, default=2, help="of the processor (default: 2)")
    group = parser.add_argument_group("stages that train")
    group.add_argument("--steps", type=int, help=f"where training ends (default: {steps})")
    group.add_argument(
        "--cooldown",
        type=int,
        help="last steps, over which the rate falls to zero "
        "(default: 0 with --steps, else as in the embedded model)",
    )
    group.add_argument("--rate", type=float, default=rate, help=f"learning rate (default: {rate})")
    group.add_argument("--batch", type=int, default=batch, help=f"rows of a step (default: {batch})")
    group.add_argument("--seed", type=int, default=0, help="of weights and data (default: 0)")
    group.add_argument("--save-every", type=int, default=100, help="steps between checkpoints (default: 100)")
    parser.add_argument("--out", type=Path, help=f"a new folder for the checkpoint, for the stage `{WRITE}`")
    arguments = parser.parse_args()
    if arguments.stage == WRITE and arguments.out is None:
        parser.error(f"{WRITE} needs --out")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    try:
        stages[arguments.stage](arguments)
    except (FileNotFoundError, FileExistsError) as error:
        parser.error(str(error))


def schedule_of(arguments: argparse.Namespace, steps: int, cooldown: int) -> Schedule:
    """The schedule that the arguments ask for. `steps` and `cooldown` are the defaults."""
    if arguments.steps is not None:
        steps, cooldown = arguments.steps, 0
    if arguments.cooldown is not None:
        cooldown = arguments.cooldown
    return Schedule(steps, arguments.rate, cooldown=cooldown)


def settings_of(arguments: argparse.Namespace) -> dict[str, int]:
    """What a training that continues must have in common with its checkpoint."""
    return {"seed": arguments.seed, "batch": arguments.batch}
