"""Carry out a plan: write its files, verify and hash them while they are written, and publish them together."""
