"""Tokenizers, as each format stores them."""
