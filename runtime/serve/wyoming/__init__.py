"""The Wyoming protocol of Home Assistant."""
