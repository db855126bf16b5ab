"""Texts in, texts out: a network with its tokenizer, texts with blanks, and constraints on them."""
