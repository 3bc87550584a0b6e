"""The bundle format: what export writes and the runtime reads. Imports nothing else of voxport, and no torch."""
