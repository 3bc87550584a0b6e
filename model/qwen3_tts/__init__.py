"""Qwen3-TTS."""
