"""Code books, which checkpoints store as sums of entries and how often each was used."""

import torch

USAGE_FLOOR = 1e-5  # as in the published code; only entries that were never used are below it


def codebook_entries(sums: torch.Tensor, usage: torch.Tensor) -> torch.Tensor:
    """sums [size, width], usage [size] -> the entries [size, width]."""
    return sums / usage.clamp_min(USAGE_FLOOR)[:, None]
