"""Converts the weights of a checkpoint: layout, precision, and integers of MLX."""
