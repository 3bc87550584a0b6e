"""Weight quantisation: recipes and schemes as data, the search for scales and palettes, quantised modules. Targets are unknown here."""
