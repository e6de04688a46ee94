"""How the one graph description is spelt for one engine."""
