"""Proof that an output is what its source says.

Nothing here is imported by what writes, nor imports any of it.
"""
