"""Texts in, texts out: a network with its tokenizer, where models are found, and texts with blanks."""
