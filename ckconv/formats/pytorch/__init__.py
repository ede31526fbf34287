"""Files of ``torch.save``: a pickle, and values behind or beside it."""
