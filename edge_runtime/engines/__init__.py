"""Engines: one forward pass of one model. Knows no text, no sampling and no drafting."""
