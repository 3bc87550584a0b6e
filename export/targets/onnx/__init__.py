"""ONNX: one graph file and one weight file per graph, with the operators of ONNX Runtime."""
