"""The bundle format, which export writes and the runtime reads.

This package imports no other package of voxport and no torch.
"""
