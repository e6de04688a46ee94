"""What a bundle takes when it is loaded as the daemon loads it, measured in a process of its own. Knows no plan.

python -m edge_runtime.bench.residence CONFIG_AS_JSON      # that process: one line of JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import msgspec

from ..config import Config
from ..errors import EngineError
from ..resident import Resident, resident
from ..schema import plain


def measure(config: Config) -> Resident:
    """Loads, warms up and makes a first text, then looks. Raises ``EngineError`` with what went wrong there."""
    command = [sys.executable, "-m", __name__, json.dumps(plain(config))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise EngineError(f"loading {config.bundle} to measure it: {said[-1] if said else 'ended without a word'}")
    return msgspec.json.decode(done.stdout, type=Resident)


def _main(text: str) -> None:
    # All that a daemon has in it, whether it is used here or not.
    from ..server import daemon as daemon
    from ..server.preparing import prepare

    model = prepare(msgspec.json.decode(text, type=Config))
    found = asdict(resident())
    model.served.close()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1])
