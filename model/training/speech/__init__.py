"""Text to speech: its codec, its language model, and their batches."""
