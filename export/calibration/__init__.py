"""Calibration: what real inputs say about the weights of a checkpoint, before they are quantised."""
