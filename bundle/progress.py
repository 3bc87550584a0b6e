"""Progress of long work on stderr: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LINE_INTERVAL_S = 10.0  # between two lines
log = logging.getLogger(__name__)


class Progress:
    """Shows how much of `total` is done, the rate, and the remaining time. Use it as a context manager.

    `unit` names what is counted. Nothing is shown where INFO is not logged. The function `advance` reports
    to the outermost progress in use, so work does not hand it on; an inner one shows nothing.
    """

    def __init__(self, total: float | None = None, unit: str = ""):
        self._total, self._unit = total, unit
        self._shown = time.monotonic()
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        self._token = None
        if _current.get() is None:
            self._token = _current.set(self)
            if log.isEnabledFor(logging.INFO) and sys.stderr.isatty():
                self._bar = _open_bar(self._total, self._unit)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        if self._token:
            _current.reset(self._token)

    def update(self, done: float, text: str) -> None:
        """`done` has the unit of the total. A line shows only the text, if the last one is old enough."""
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=done, description=text)
        elif self._token and time.monotonic() - self._shown >= LINE_INTERVAL_S:
            self._shown = time.monotonic()
            log.info("%s", text)

    def advance(self, amount: float, text: str | None) -> None:
        """Adds to what is done. Without a terminal nothing is shown: the work logs its own lines."""
        if self._bar:
            self._bar.update(self._bar.task_ids[0], advance=amount, description=text)


_current: ContextVar[Progress | None] = ContextVar("progress", default=None)


def advance(amount: float, text: str | None = None) -> None:
    """Advances the outermost progress in use, if there is one. `text` says what is done next."""
    if progress := _current.get():
        progress.advance(amount, text)


def _open_bar(total: float | None, unit: str) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Task as RichTask
    from rich.text import Text

    class Rate(TextColumn):
        def render(self, task: RichTask) -> Text:
            whole = "" if task.total is None else f"/{task.total:.0f}"
            rate = f", {task.speed:.2g} {unit}/s" if task.speed else ""
            return Text(f"{task.completed:.0f}{whole} {unit}{rate}")

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        Rate(""),
        TimeElapsedColumn(),
        *([TimeRemainingColumn()] if total else []),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # stdout carries results
    )
    bar.add_task("", total=total)
    bar.start()
    return bar
