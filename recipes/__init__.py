"""How the bundled models and their corpora were made. In a checkout and in the sdist, and not installed."""
