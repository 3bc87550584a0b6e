"""Programs beside Python that tests need."""

import os
import shutil

import pytest


def need(program: str) -> str:
    """Its path. Skips without it, but not in CI, whose script installs it."""
    found = shutil.which(program)
    if not found:
        assert "CI" not in os.environ, f"{program} is missing; .ci/run installs it"
        pytest.skip(f"needs {program}")
    return found
