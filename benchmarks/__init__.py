"""Measurements, each a module with its command. They are in a checkout and in the sdist, and not installed."""

from pathlib import Path

ANY_ORDER = Path(__file__).parent / "models/kjv-anyorder"  # for exact sampling with several tokens per call
