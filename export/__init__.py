"""Workstation only: a Gemma checkpoint becomes a bundle. The runtime never imports this package."""
