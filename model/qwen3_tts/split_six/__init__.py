"""The graphs of `--split six`, in the layout of the Core ML models of speech-swift."""
