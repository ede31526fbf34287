"""Bytes in: source files, documents, and canonical rows."""
