"""``make demo``: the models in the box sample, fill in and complete; then the float32 fault, measured and gone."""
