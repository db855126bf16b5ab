"""Measurements, each a module with its command. They are in a checkout and in the sdist, and not installed."""
