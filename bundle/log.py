"""Progress on stderr, each line with the seconds since the start."""

from __future__ import annotations

import logging
import sys


def set_up_logging(*names: str) -> None:
    """`names` are the loggers that report progress; of all others errors only."""
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format="%(elapsed)s %(message)s", force=True)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_add_elapsed)
    for name in names:
        logging.getLogger(name).setLevel(logging.INFO)


def _add_elapsed(record: logging.LogRecord) -> bool:
    record.elapsed = f"[{record.relativeCreated / 1000:6.1f}s]"
    return True
