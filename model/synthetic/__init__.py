"""Synthetic checkpoints: the published format with random weights."""
