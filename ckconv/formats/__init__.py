"""One folder a format."""
