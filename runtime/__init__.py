"""Runs bundles: text to speech and speech to text, without torch where the engine needs none."""
