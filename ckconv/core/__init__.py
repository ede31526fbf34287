"""Models as data: types, shapes, names, hyper-parameters; no I/O."""
