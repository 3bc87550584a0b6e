"""Weight quantisation: recipes as data, the search for scales, the modules that hold integers. Knows modules, not targets."""
