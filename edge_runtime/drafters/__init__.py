"""Drafters: what might come next. A wrong draft costs time and never changes the text."""
