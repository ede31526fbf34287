"""Files of ``torch.save``: a pickle of tensors and their values.

Values are beside it in a zip archive, or behind it.
"""
