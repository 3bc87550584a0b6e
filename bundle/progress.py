"""Progress of long work: libraries report it, and the caller of `shown_by` shows it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol


class Display(Protocol):
    """Shows the progress of one piece of work."""

    def advance(self, amount: float, text: str | None) -> None: ...


OpenDisplay = Callable[[float, str], AbstractContextManager[Display]]
_open: ContextVar[OpenDisplay | None] = ContextVar("open_display", default=None)
_current: ContextVar[Display | None] = ContextVar("current_display", default=None)


@contextmanager
def shown_by(open_display: OpenDisplay) -> Iterator[None]:
    """Work in this context is shown by what `open_display(total, unit)` returns."""
    token = _open.set(open_display)
    try:
        yield
    finally:
        _open.reset(token)


@contextmanager
def progress(total: float, unit: str) -> Iterator[None]:
    """Work of `total` units. Work within it reports to the same display."""
    open_display = _open.get()
    if open_display is None or _current.get() is not None:
        yield
        return
    with open_display(total, unit) as display:
        token = _current.set(display)
        try:
            yield
        finally:
            _current.reset(token)


def advance(amount: float, text: str | None = None) -> None:
    """Adds to what is done, if it is shown. `text` says what is done next."""
    if display := _current.get():
        display.advance(amount, text)
