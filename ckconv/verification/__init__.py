"""Whether an output is what its source says: nothing here is imported by what writes, nor imports any of it."""
