"""The judges: any causal language model, and the oracles that know the truth."""
