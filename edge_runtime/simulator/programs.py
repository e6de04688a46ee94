"""``nvpmodel`` and ``jetson_clocks`` of a simulated board, as shell scripts. Knows the table of modes and where their
caps are written; nothing of who calls them.
"""

from __future__ import annotations

from ..boards import Board, PowerMode
from .devices import CPUS, GPU_CLOCK, MEMORY_CAP, MEMORY_CLOCK
from .files import Value

STATUS = "var/lib/nvpmodel/status"
"""The mode that is set, as ``pmode:0002``."""
FAULT = "var/lib/nvpmodel/fault"
"""A shell command that ``nvpmodel`` runs instead of answering, where the file is there: ``exit 3``, ``sleep 9``."""

_NVPMODEL = """#!/bin/sh
# nvpmodel of a simulated board
[ -e /{fault} ] && . /{fault}
name() {{ case "$1" in
{names}
*) echo "NVPM ERROR: Invalid power mode $1" >&2; exit 255;; esac; }}
case "$1" in
-q) read -r status </{status}; id=${{status#pmode:}}; id=${{id#000}}; echo "NV Power Mode: $(name "$id")"; echo "$id";;
-p) cat <<'END'
{listing}
END
;;
-m) name "$2" >/dev/null; case "$2" in
{caps}
esac; echo "pmode:000$2" >/{status};;
*) echo "usage: nvpmodel -q | -p --verbose | -m ID" >&2; exit 1;;
esac
"""

_JETSON_CLOCKS = """#!/bin/sh
# jetson_clocks of a simulated board
gpu=/{gpu}
case "$1" in
--show)
  echo "SOC family:tegra234  Machine:{title}"
  echo "Online CPUs: 0-{last}"
  for cpu in {cpus}; do
    echo "cpu$cpu: Online=1 Governor=schedutil MinFreq=729600 MaxFreq={khz} CurrentFreq={khz} IdleStates: WFI=1 c7=1 "
  done
  echo "GPU MinFreq=$(cat $gpu/min_freq) MaxFreq=$(cat $gpu/max_freq) CurrentFreq=$(cat $gpu/cur_freq)"
  echo "EMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=3199000000 FreqOverride=0"
  echo "NV Power Mode: simulated";;
--store) echo stored >"$2"; echo stored;;
--restore) echo 306000000 >$gpu/min_freq;;
*) cat $gpu/max_freq >$gpu/min_freq;;
esac
"""


def caps(board: Board, mode: PowerMode) -> dict[str, Value]:
    """What a mode writes where. A clock above its cap falls to it; none rises by itself."""
    values: dict[str, Value] = {
        f"{GPU_CLOCK}/max_freq": round(1e6 * mode.gpu_mhz),
        f"{MEMORY_CLOCK}/rate": round(1e6 * mode.memory_mhz),
        MEMORY_CAP: round(1e6 * mode.memory_mhz),
    }
    for index in range(board.fastest.cpus):
        values[f"{CPUS}/cpu{index}/online"] = int(index < mode.cpus)
        for name in ("scaling_max_freq", "scaling_cur_freq"):
            values[f"{CPUS}/cpu{index}/cpufreq/{name}"] = round(1e3 * mode.cpu_mhz)
    return values


def configuration(board: Board) -> str:
    """``/etc/nvpmodel.conf``, as far as names, ids and the default go."""
    sections = [f"< POWER_MODEL ID={mode.id} NAME={mode.name} >\nGPU MAX_FREQ {round(1e6 * mode.gpu_mhz)}\n"
                for mode in board.modes]  # fmt: skip
    return "\n".join([*sections, f"< PM_CONFIG DEFAULT={board.default.id} >"])


def nvpmodel(board: Board) -> str:
    listing = ["NVPM VERB: Config file: /etc/nvpmodel.conf", "NVPM VERB: parsing done for /etc/nvpmodel.conf"]
    for mode in board.modes:
        listing.append(f"NVPM VERB: POWER_MODEL: ID={mode.id} NAME={mode.name}")
        listing.append("NVPM VERB: TPC_POWER_GATING TPC_PG_MASK 240")
    listing.append(f"NVPM VERB: PM_CONFIG: DEFAULT={board.default.name}({board.default.id})")
    writes = []
    for mode in board.modes:
        lines = [f"echo {value} >/{name}" for name, value in caps(board, mode).items()]
        writes.append(f"{mode.id}) {'; '.join(lines)};;")
    return _NVPMODEL.format(
        fault=FAULT,
        status=STATUS,
        names="\n".join(f"{mode.id}) echo {mode.name};;" for mode in board.modes),
        listing="\n".join(listing),
        caps="\n".join(writes),
    )


def jetson_clocks(board: Board) -> str:
    count = board.fastest.cpus
    return _JETSON_CLOCKS.format(
        gpu=GPU_CLOCK,
        title=board.title,
        last=count - 1,
        cpus=" ".join(map(str, range(count))),
        khz=round(1e3 * board.fastest.cpu_mhz),
    )
