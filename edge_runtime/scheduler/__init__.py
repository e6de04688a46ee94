"""Requests take turns on one engine. Knows no HTTP; of models, only that a decoder steps sessions."""
