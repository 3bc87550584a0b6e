"""Speech to text: its model, its streams of tokens, and greedy transcription."""
