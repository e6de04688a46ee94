"""Does a daemon grow by every bundle that it swaps in? On the real Gemma: a small one would not show it."""

from __future__ import annotations

import threading
from pathlib import Path

from edge_runtime.config import Config, EngineConfig
from edge_runtime.resident import resident
from edge_runtime.server.preparing import prepare


def test_a_model_that_was_let_go_leaves_nothing(exact_bundle: Path) -> None:
    """Each is loaded in a thread of its own, as the daemon does: glibc keeps an arena for each of them."""
    config = Config(bundle=str(exact_bundle), engine=EngineConfig(sessions=2, context=512, verify_hashes=False))
    left: list[int] = []

    def load_and_let_go() -> None:
        prepare(config).served.close()

    for _ in range(4):
        thread = threading.Thread(target=load_and_let_go)
        thread.start()
        thread.join()
        left.append(resident().anonymous)
    assert left[-1] - left[0] < 60e6, left
