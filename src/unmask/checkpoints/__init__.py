"""Checkpoints: ours and those of other projects, one file for each format. No code of a checkpoint is ever run."""
