"""Core ML: lowering, and packages on disk."""
