"""Boards that are not there: trees of files as an Orin has them, a namespace in which they are this machine's own, and
what happens to a board under load. Importing it starts nothing.
"""
