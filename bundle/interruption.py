"""Interruptions before a command has started, and while it cleans up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT and SIGTERM are ignored, for short work that must be complete."""
    if threading.current_thread() is not threading.main_thread():  # signals never interrupt it
        yield
        return
    before = [signal.signal(each, signal.SIG_IGN) for each in SIGNALS]
    try:
        yield
    finally:
        for each, handler in zip(SIGNALS, before, strict=True):
            signal.signal(each, handler)


def end_without_traceback() -> None:
    """An interruption ends the process immediately, until `bundle.command` handles it.

    Call it before the imports that take time: Python would print a traceback there.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by a background job
        signal.signal(signal.SIGINT, signal.SIG_DFL)
