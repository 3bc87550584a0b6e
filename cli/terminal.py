"""Log lines and the progress of long work, on stderr.

Progress is a bar on a terminal, and a line every few seconds elsewhere.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LINE_INTERVAL_S = 10.0  # between two lines of progress
log = logging.getLogger(__name__)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at that moment: a progress bar replaces it to stay below the lines."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None: ...


class _PrintableFormatter(logging.Formatter):
    """The seconds since the start and the message. Control characters that a message quotes would change the
    terminal, so they are replaced.
    """

    def format(self, record: logging.LogRecord) -> str:
        text = f"[{record.relativeCreated / 1000:6.1f}s] {super().format(record)}"
        return "".join(
            character if character.isprintable() or character == "\n" else " " for character in text
        )


def set_up_logging(level: int = logging.INFO) -> None:
    """Logs to stderr with the seconds since the start: voxport from `level`, other packages errors."""
    handler = _StderrHandler()
    handler.setFormatter(_PrintableFormatter())
    logging.basicConfig(level=logging.ERROR, handlers=[handler], force=True)
    logging.getLogger("voxport").setLevel(level)
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # torch sets a lower level when imported


def silence() -> None:
    """Logs nothing more, because a thread may still run behind the last line."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _StderrHandler):
            handler.setLevel(logging.CRITICAL + 1)


class Progress:
    """How much of `total` is done, and the remaining time. `unit` names what is counted.

    Nothing is shown if INFO is not logged.
    """

    def __init__(self, total: float | None, unit: str):
        self._last_line = time.monotonic()
        is_shown = log.isEnabledFor(logging.INFO) and sys.stderr.isatty()
        self._bar = _open_bar(total, unit) if is_shown else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: float, text: str) -> None:
        """`done` has the unit of the total. A line shows only the text, if the last one is old enough."""
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=done, description=text)
        elif time.monotonic() - self._last_line >= LINE_INTERVAL_S:
            self._last_line = time.monotonic()
            log.info("%s", text)

    def advance(self, amount: float, text: str | None) -> None:
        """Adds to what is done. Without a terminal nothing is shown: the work logs its own lines."""
        if self._bar:
            self._bar.update(self._bar.task_ids[0], advance=amount, description=text)


def _open_bar(total: float | None, unit: str) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    whole = "" if total is None else f"/{total:.0f}"
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn(f"{{task.completed:.0f}}{whole} {unit}"),
        TimeElapsedColumn(),
        *([TimeRemainingColumn()] if total else []),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # stdout carries results
    )
    bar.add_task("", total=total)
    bar.start()
    return bar
