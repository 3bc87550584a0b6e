"""Building blocks that families share: each file is one noun."""
