"""Models held against each other: an output against its source, an output made again, any two models."""
