"""Voxtral-Realtime: streaming speech to text."""
