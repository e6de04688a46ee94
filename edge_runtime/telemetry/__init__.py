"""Readings of the board: what a ``Sample`` is, and where samples come from. Importing it touches no hardware."""
