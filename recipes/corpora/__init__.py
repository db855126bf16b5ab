"""Corpora that are drawn from a known distribution: ``python -m recipes.prepare NAME FOLDER``."""
