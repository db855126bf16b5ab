"""What a person types and sees: the verbs sample, infill and models, the live view, and saved traces."""
