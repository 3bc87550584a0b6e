"""Runs bundles: text to speech and speech to text, without torch if the engine needs none."""
