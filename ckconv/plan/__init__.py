"""Index + target -> exact steps, before any output exists."""
