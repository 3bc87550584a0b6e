"""Folders of the checkout."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "parity" / "golden"  # checkpoints with values of independent implementations
