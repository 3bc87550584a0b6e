"""Layout of the KV caches of the target ONNX."""

from bundle.spec import LayoutName

LAYOUT: LayoutName = "BHSD, staged"
