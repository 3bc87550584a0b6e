"""How well a bundle speaks or hears: word error rates, codes and sound beside full precision."""
