"""The quality of a bundle: word error rates, codes and sound beside full precision."""
