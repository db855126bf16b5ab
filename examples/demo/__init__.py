"""``make demo``: the bundled models sample, infill and complete; then the float32 error, measured and fixed."""
