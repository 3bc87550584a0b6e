"""Verification: artifacts against eager PyTorch."""
