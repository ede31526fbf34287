"""Bytes out, safely: nothing has its final name until it is complete."""
