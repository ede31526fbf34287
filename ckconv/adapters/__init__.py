"""Adapters: their changes, and models with adapters merged."""
