"""Comparison of models: an output with its source, any two models."""
