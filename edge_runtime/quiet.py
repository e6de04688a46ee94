"""What libraries are told by the environment: to keep what they see to themselves. Knows no library's interface.

Official builds of onnxruntime since 1.29 send what is loaded and what fails to their makers, and keep a database and a
number of this machine below the home: on unless this variable is there before their first call.
"""

from __future__ import annotations

import os

QUIET = {"ORT_DISABLE_TELEMETRY": "1"}


def keep_to_ourselves() -> None:
    """Ahead of an import; whoever set it otherwise has his way. Children inherit it."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
