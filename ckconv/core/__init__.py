"""Models as data: types, shapes, names, hyper-parameters; no I/O."""

__version__ = "0.3.0"
