"""Sentences, the recordings that espeak-ng makes of them, and their tokens."""
