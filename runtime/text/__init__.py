"""Text in and out: tokenizers and clean-up."""
