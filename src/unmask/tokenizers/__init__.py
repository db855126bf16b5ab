"""Tokenizers: ours, and those of other projects' checkpoints."""
