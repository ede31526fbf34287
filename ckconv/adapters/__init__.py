"""Adapters: what they change, and a model with them merged."""
