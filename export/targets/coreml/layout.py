"""Layout of the KV caches of the target Core ML."""

from voxport.bundle.spec import LayoutName

LAYOUT: LayoutName = "BHSD"
