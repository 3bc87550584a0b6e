"""Model half of a family of two linears and a cache. Tests register it; no package file mentions it."""
