"""Weight quantisation: recipes and schemes, the search for scales and palettes, and quantised modules.

Nothing here depends on a target.
"""
