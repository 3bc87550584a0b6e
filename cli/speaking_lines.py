"""Speaks each line of a text that arrives, as in a conversation."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator

import numpy as np

from voxport.bundle.errors import UsageError

log = logging.getLogger(__name__)


def by_line(
    text: Iterable[str], speak: Callable[[str], Generator[np.ndarray, None, str]], silence: np.ndarray
) -> Generator[np.ndarray, None, str]:
    """Speaks each line when it ends, with `silence` [n] behind it."""
    status = "end"
    for line in filter(str.strip, _lines(text)):
        try:
            ended = yield from speak(line)
        except UsageError as error:
            if error.field != "text":
                raise
            log.warning("%s", error)
            continue
        status = ended if status == "end" else status
        yield silence
    return status


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """Lines without their ends, each as soon as it has ended."""
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        yield from whole
    yield rest
