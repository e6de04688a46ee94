"""Whole answers of this runtime and of its peers, side by side in one run."""
