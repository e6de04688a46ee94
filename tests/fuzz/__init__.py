"""Fuzzing of everything that reads bytes of others: ``python -m tests.fuzz --help``. Each reader has a harness
(``targets``); atheris drives it here, and a seeded loop of some thousands of inputs in the ordinary tests, which need
no atheris.
"""
