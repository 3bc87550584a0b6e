"""Live transcription over WebSockets, in the dialects of OpenAI, vLLM and Mistral."""
