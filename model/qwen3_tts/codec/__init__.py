"""The speech tokenizer: codes to samples and back."""
