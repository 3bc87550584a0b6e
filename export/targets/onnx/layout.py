"""Layout of the KV caches of the target ONNX."""

from voxport.bundle.spec import LayoutName

LAYOUT: LayoutName = "BHSD, staged"
