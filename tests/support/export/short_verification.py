"""Short verification: few calls of each component, for tests in which a fault must appear in them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from voxport.export.verify.modes import Extent, VerifyOptions

SHORT_EXTENT = Extent(seeds=(0, 1), sizes=(1, 5), steps=50, chunked=30, run_steps=6, free_steps=6)


@contextmanager
def shorten_verification() -> Iterator[None]:
    """Verification in this process has the extent `SHORT_EXTENT`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("voxport.export.verify.modes.WHOLE", SHORT_EXTENT)
        yield


@contextmanager
def few_calls() -> Iterator[None]:
    """An export in this process is verified with the extent `SHORT_EXTENT` and a long run of 200 steps."""
    with pytest.MonkeyPatch.context() as patch, shorten_verification():
        patch.setattr("voxport.export.build.DEFAULTS", VerifyOptions(steps=200))
        yield
