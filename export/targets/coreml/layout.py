"""Layout of the KV caches of the target Core ML."""

from bundle.spec import LayoutName

LAYOUT: LayoutName = "BHSD"
