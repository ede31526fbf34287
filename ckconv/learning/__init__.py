"""Family files made of a checkpoint and the GGUF that somebody made of it."""
