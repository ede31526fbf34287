"""Conversion: plan an output, write and verify its files, publish them."""
