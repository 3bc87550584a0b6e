"""Voxtral-Mini-Realtime: streaming speech to text."""
