"""Models: configuration, checkpoints, the embedded pair, tokenizers and the forward."""
