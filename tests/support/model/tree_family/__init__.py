"""A family whose holder is any tree of modules, as its configuration lists them."""
