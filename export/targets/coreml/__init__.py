"""Core ML: one package per graph, with a function per component."""
