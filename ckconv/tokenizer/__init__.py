"""What formats say about a tokenizer."""
