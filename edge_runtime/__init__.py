"""edge-runtime: lossless speculative decoding of Gemma models within fixed budgets."""

__version__ = "0.1.0"
