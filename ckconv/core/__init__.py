"""What a model is: types, shapes, names, hyper-parameters, and the plan as data. No input or output, no format."""
