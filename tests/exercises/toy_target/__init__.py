"""A target that stores weights in an .npz and computes in NumPy. Tests register it."""
