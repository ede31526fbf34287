"""Plans carried out, and what they wrote compared with its source."""
