"""Values and blocks: codecs, and exact conversions between them."""
