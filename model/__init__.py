"""Speech models in PyTorch: configuration, strict loading, components.

Imports none of quantize, export, runtime.
"""
