"""Data: tokenizers, token files, their preparation, the named corpora, and the global batch."""
