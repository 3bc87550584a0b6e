"""ExecuTorch: one program per graph, with XNNPACK and the llama custom operators."""
