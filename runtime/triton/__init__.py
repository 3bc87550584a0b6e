"""Model repositories for Triton Inference Server."""
