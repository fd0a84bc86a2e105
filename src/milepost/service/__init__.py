"""Say which weights are current, hand them out, and know which weights made which data."""
