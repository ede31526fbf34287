"""ckconv converts model weights between formats, exactly, and back."""

__version__ = "0.1.0"
