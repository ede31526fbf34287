"""Adapters of peft."""
