"""The judges: any causal language model, and oracles that know the true distribution."""
