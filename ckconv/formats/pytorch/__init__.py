"""What ``torch.save`` wrote: tensors described by a pickle, their values beside it, in a zip archive or behind it."""
