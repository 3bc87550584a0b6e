"""From checkpoint to verified bundle: lower, compare, save. May import all packages; nothing imports it."""
