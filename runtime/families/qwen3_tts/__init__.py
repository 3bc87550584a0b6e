"""Qwen3-TTS: text to speech."""
