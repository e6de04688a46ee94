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
from ..errors import EdgeError, InputError
from ..resident import Resident, resident
from ..schema import plain

_ERROR = "error: "


def measure(config: Config) -> Resident:
    """Loads, warms up and makes a first text, then looks. Raises ``InputError`` with what went wrong there: whoever
    asks for a measurement asks for a machine that can make it."""
    command = [sys.executable, "-m", __name__, json.dumps(plain(config))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        told = said[-1].removeprefix(_ERROR) if said else f"ended without a word ({done.returncode})"
        raise InputError(f"loading {config.bundle} to measure it: {told}")
    return msgspec.json.decode(done.stdout, type=Resident)


def _main(text: str) -> None:
    # All that a daemon has in it, whether it is used here or not.
    from ..server import daemon as daemon
    from ..server.preparing import prepare

    try:
        model = prepare(msgspec.json.decode(text, type=Config))
    except EdgeError as problem:
        sys.exit(f"{_ERROR}{' '.join(str(problem).split())}")
    found = asdict(resident())
    model.served.close()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1])
