"""From checkpoint to verified bundle: lower, compare, save. May import all packages but `voxport`."""
