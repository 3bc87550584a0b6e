"""Progress of a long command on stderr: a bar on a terminal, a line every few seconds elsewhere."""

import logging
import sys
import time
from types import TracebackType

from bundle.command import CLEAR_LINE

LINE_INTERVAL_S, BAR_INTERVAL_S = 10.0, 0.1
WIDTH = 30  # characters of a bar
log = logging.getLogger(__name__)


class Progress:
    """Shows how much of `total` is done; without a total, only the text. Use it as a context manager."""

    def __init__(self, total: float | None = None):
        self._total, self._is_terminal = total, sys.stderr.isatty()
        self._interval = BAR_INTERVAL_S if self._is_terminal else LINE_INTERVAL_S
        self._shown = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_terminal:
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)

    def update(self, done: float, text: str) -> None:
        """`done` has the unit of the total. Shows nothing if the last text is recent."""
        now = time.monotonic()
        if now - self._shown < self._interval:
            return
        self._shown = now
        if self._is_terminal:
            print(f"{CLEAR_LINE}{self._bar(done)}{text}", end="", file=sys.stderr, flush=True)
        else:
            log.info("%s", text)

    def _bar(self, done: float) -> str:
        if not self._total:
            return ""
        share = min(done / self._total, 1.0)
        return f"[{'#' * round(share * WIDTH):<{WIDTH}}] {share:4.0%} "
