"""A family of two linears and a cache, for tests: registered by one row of `model.families.FAMILIES`."""
