"""Settings of every test: no network, few threads, no time limit on a generated example."""

from __future__ import annotations

import os

# Before anything imports numpy, torch or tokenizers: each reads these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "2")

from hypothesis import settings

# Shared cores make a single slow example likely and meaningless.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
