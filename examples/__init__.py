"""Programs that use the library. They are in a checkout and in the sdist, and not installed."""
