"""The training loop of every stage: resumes from its last checkpoint, logs, averages weights.

A stage is a model and a function from a step to its losses. All randomness of a step comes from the seed and
the number of the step, so a run that was interrupted continues as if it had not been.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import nn

log = logging.getLogger(__name__)
Losses = dict[str, torch.Tensor]  # "loss" is the one that is minimised
AVERAGING = 0.999  # how much of the averaged weights each step keeps
MAX_GRADIENT_NORM = 1.0
WEIGHT_DECAY = 0.01


@dataclass(frozen=True)
class Schedule:
    """Learning rate: rises during `warmup` steps, stays, falls to zero during the last `cooldown` of `steps`.

    `steps` may be raised for a later run as long as the cooldown has not begun.
    """

    steps: int
    rate: float = 1e-3
    warmup: int = 200
    cooldown: int = 0

    def at(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        left = (self.steps - step) / self.cooldown if self.cooldown else 1.0
        return self.rate * min((step + 1) / self.warmup, left, 1.0)


def hash_of(seed: str) -> int:
    """A number for a generator of torch, the same in every process."""
    return int.from_bytes(sha256(seed.encode()).digest()[:7], "little")


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@cache
def has_bfloat16() -> bool:
    """Whether the device multiplies in bfloat16: three times as fast on a CPU with AVX512_BF16."""
    return torch.cuda.is_available() or torch.cpu._is_avx512_bf16_supported()


def bfloat16_autocast() -> AbstractContextManager[Any]:
    """Matrix products in bfloat16, if the device has it."""
    return torch.autocast(device().type, torch.bfloat16) if has_bfloat16() else nullcontext()


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonal updates, of the size of AdamW's (Keller Jordan's Muon; size by Moonshot).

    As `torch.optim.Muon`, which always multiplies in bfloat16: on a processor without AVX512_BF16 its step
    took 18.8 s for 56 matrices [256, 704], and 0.8 s in float32 (AMD EPYC, one thread).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, momentum: float = 0.95):
        super().__init__(parameters, {"lr": rate, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure
        for group in self.param_groups:
            for matrix in group["params"]:
                state = self.state[matrix]
                if not state:
                    state["momentum"] = torch.zeros_like(matrix)
                momentum = state["momentum"].lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonal(matrix.grad.lerp(momentum, group["momentum"]))
                matrix.mul_(1 - group["lr"] * WEIGHT_DECAY)
                matrix.add_(update, alpha=-0.2 * max(matrix.shape) ** 0.5 * group["lr"])


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """[m, n] -> about the nearest matrix of orthonormal rows or columns, by five Newton-Schulz steps."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.mT if is_tall else matrix).to(torch.bfloat16 if has_bfloat16() else torch.float32)
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        squared = x @ x.mT
        x = torch.addmm(x, torch.addmm(squared, squared, squared, beta=-4.775, alpha=2.0315), x, beta=3.4445)
    return (x.mT if is_tall else x).float()


class Trainer:
    """A model with its optimisers and its averaged weights, in `folder`/`name`.pt.

    `settings` are those that a training must keep, such as the seed, and the steps of the models that it is
    trained with: if these train on, their codes are others. Matrices inside of the blocks are trained with
    Muon, all other parameters with AdamW.
    """

    def __init__(
        self,
        model: nn.Module,
        folder: Path,
        name: str,
        schedule: Schedule,
        settings: Mapping[str, int] | None = None,
    ):
        """Raises FileExistsError if the checkpoint has other settings."""
        self.settings = dict(settings or {})
        folder.mkdir(parents=True, exist_ok=True)
        self.model, self.schedule = model.to(device()), schedule
        self.path, self.log_path = folder / f"{name}.pt", folder / f"{name}.jsonl"
        inner, others = _by_optimiser(model)
        self.optimisers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                others, lr=schedule.rate, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY, fused=True
            )
        ]
        if inner:
            self.optimisers.append(Muon(inner, schedule.rate))
        self.average = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.step, self.seconds = 0, 0.0
        if self.path.exists():
            self._resume()

    def run(self, losses: Callable[[int], Losses], save_every: int = 200, log_every: int = 20) -> None:
        """Trains from the last checkpoint to the end of the schedule."""
        while self.step < self.schedule.steps:
            started, processor = time.monotonic(), time.process_time()
            found = self._train_step(losses)
            self.seconds += time.process_time() - processor
            is_last = self.step == self.schedule.steps
            if is_last or self.step % log_every == 0:
                values = {key: round(float(value.detach()), 4) for key, value in found.items()}
                self.record({**values, "wall_s": round(time.monotonic() - started, 3)})
            if is_last or self.step % save_every == 0:
                self.save()

    def record(self, values: Mapping[str, object]) -> None:
        """Appends a line to the log, and logs it."""
        line = {"step": self.step, "cpu_s": round(self.seconds, 1), **values}
        with self.log_path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        log.info("%s", line)

    def save(self) -> None:
        """Writes the checkpoint to a file beside it and renames that: an interruption leaves the old one."""
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "settings": self.settings,
            "model": self.model.state_dict(),
            "average": self.average,
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.path)

    def averaged(self) -> nn.Module:
        """The model with its averaged weights, in place; for a program that trains no further."""
        self.model.load_state_dict(self.average)
        return self.model

    def _train_step(self, losses: Callable[[int], Losses]) -> Losses:
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.schedule.at(self.step)
        with bfloat16_autocast():
            found = losses(self.step)
        found["loss"].backward()
        found["norm"] = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self._average()
        return found

    @torch.no_grad()
    def _average(self) -> None:
        keep = min(AVERAGING, self.step / (self.step + 10))
        for name, value in self.model.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - keep)
            else:
                self.average[name].copy_(value)

    def _resume(self) -> None:
        state = torch.load(self.path, map_location=device(), weights_only=True)
        if state["settings"] != self.settings:
            raise FileExistsError(
                f"{self.path}: was trained with {state['settings']}, expected {self.settings}; remove it to "
                "train anew"
            )
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.average, self.step, self.seconds = state["average"], state["step"], state["seconds"]
        self._shorten_log()
        log.info("%s: continues at step %d", self.path, self.step)

    def _shorten_log(self) -> None:
        """Removes the lines behind the checkpoint, and one that an interruption cut short."""
        lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= self.step]
        self.log_path.write_text("".join(f"{line}\n" for line in kept))


def _by_optimiser(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices of attention and feed-forward, and all other parameters."""
    inner: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_inner = parameter.dim() == 2 and (".attention." in name or ".feed_forward." in name)
        (inner if is_inner else others).append(parameter)
    return inner, others
