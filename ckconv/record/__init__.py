"""The source record: what a bump file does not hold of its source."""
