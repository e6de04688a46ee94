"""What is wrong with a machine, and the command that mends it. Pure: knows a ``Machine``, and asks it nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ..config import Config
from ..memory import FREE_MEMORY, Change, Plan, shown
from ..telemetry.sample import Sample
from .finding import Check, Status
from .limits import limit_checks, mode_checks, over_current
from .machine import Machine

_GROUPS = ("video", "render")
_LEAST_DISK = 1_000_000_000
_LARGE_BLOCK = 4 << 20
_FEW_BLOCKS = 0.2
"""Of what is to be allocated: with less in blocks of 4 MB a large allocation is likely to fail."""
_FRAGMENTS_SINCE = (36, 4, 7)
"""Release of L4T from which large allocations are reported to fail where memory is fragmented."""
_OLDEST_ENGINE = (1, 23)
_SMALL_BOARD = 9_000_000_000
_NEAR_TRIP_C = 10.0
_COMPACT = "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches; echo 1 | sudo tee /proc/sys/vm/compact_memory"
_NO_DESKTOP = "close the desktop (sudo systemctl isolate multi-user.target) and other programs"
_JTOP_FIXES = {
    "not-installed": "pip install jetson-stats  (the version that the service has: `jtop --version`)",
    "no-service": "sudo systemctl restart jtop.service",
    "no-access": "sudo usermod -aG jtop {user}, then log in again",
    "version": "sudo pip install -U jetson-stats && sudo systemctl restart jtop.service, and the same version here",
    "frozen": "sudo systemctl restart jtop.service",
    "lost": "sudo systemctl restart jtop.service",
    "hung": "sudo systemctl restart jtop.service",
}


def check(
    machine: Machine, config: Config | None = None, plan: Plan | None = None, recorded: Sequence[Sample] = ()
) -> tuple[Check, ...]:
    """``config`` and ``plan``: what is to run there, as far as it is known. ``recorded``: what is to be replayed."""
    found = [_board(machine)]
    if machine.identity.tegra:
        found += [_system(machine), *mode_checks(machine, config), *_clocks(machine), _throttled(machine)]
        found += [*_sensors(machine), _jtop(machine, config), *_groups(machine), _nvmap(machine), _swap(machine)]
        found += [_blocks(machine, plan)]
    found += [*limit_checks(machine, config, recorded), *_socket_group(machine, config)]
    found += [_engine(machine, config), _disk(machine), *_memory(machine, plan)]
    return tuple(found)


def _board(machine: Machine) -> Check:
    identity = machine.identity
    if not identity.tegra:
        return Check("board", "ok", "no Jetson: what only a board has is left out")
    part = f" ({identity.part})" if identity.part else ""
    if identity.board is None:
        text = f"{identity.title}{part} is none of the boards that this runtime knows: nothing is assumed of it"
        return Check("board", "advice", text, "choose memory, power and temperature in the section budget yourself")
    return Check("board", "ok", f"{identity.title}{part}")


def _system(machine: Machine) -> Check:
    identity = machine.identity
    if identity.l4t is None:
        text = "L4T does not say its release (/etc/nv_tegra_release): a container without the host's files?"
        return Check("system", "advice", text, "mount /etc/nv_tegra_release, or install nvidia-l4t-core")
    said = f"L4T {identity.l4t}, Python {machine.python}"
    if identity.jetpack is None:
        fix = "install JetPack 6.2 or later: https://developer.nvidia.com/embedded/jetpack"
        return Check("system", "problem", f"{said}: older than any JetPack that this runtime is made for", fix)
    return Check("system", "ok", f"JetPack {identity.jetpack.version} ({said})")


def _clocks(machine: Machine) -> Iterator[Check]:
    board, sample = machine.identity.board, machine.sample
    if sample is None or sample.gpu.max_clock_mhz is None:
        yield Check("clocks", "problem", "the accelerator shows no clock: its driver is not up", "sudo reboot")
        return
    most = sample.gpu.max_clock_mhz
    mode = None if board is None or sample.power_mode is None else board.mode(sample.power_mode)
    if mode is not None and most < 0.95 * mode.gpu_mhz:
        text = (
            f"the accelerator may run at {most:g} MHz, and {mode.name} allows {mode.gpu_mhz:g}: something else caps it"
        )
        yield Check("clocks", "problem", text, f"sudo nvpmodel -m {mode.id}")
        return
    if machine.locked_clocks:
        text = f"held at {most:g} MHz (jetson_clocks): idle power and heat are higher, steps are more even"
        yield Check("clocks", "advice", text, "sudo jetson_clocks --restore")
        return
    yield Check("clocks", "ok", f"accelerator up to {most:g} MHz")


def _throttled(machine: Machine) -> Check:
    sample = machine.sample
    events = over_current(sample)
    if sample is None:
        return Check("throttling", "advice", "no sensor tells", "")
    active = [device.name for device in sample.throttling.cooling if device.state and "fan" not in device.name]
    if active:
        text = f"the board is clocking down now: {', '.join(active)}"
        return Check("throttling", "problem", text, "better cooling, or a lower budget.power_mw or temperature_c")
    if events:
        text = f"over-current protection has cut in since boot: {events}"
        fix = "a lower budget.power_mw, a capped power mode (sudo nvpmodel -m ID), a stronger power supply"
        return Check("throttling", "problem", text, fix)
    return Check("throttling", "ok", "none since boot")


def _sensors(machine: Machine) -> Iterator[Check]:
    sample = machine.sample
    if sample is None:
        text = "no sensor can be read below /sys: limits of power and temperature cannot be held"
        yield Check("sensors", "problem", text, "mount /sys read-only into the container; check the drivers in dmesg")
        return
    if sample.power_mw is None:
        yield Check("sensors", "problem", "the power of the board cannot be told", "sudo modprobe ina3221; dmesg")
    hottest, trip = sample.hottest, sample.throttling.passive_trip_c
    if hottest is not None and trip is not None and hottest.temperature_c > trip - _NEAR_TRIP_C:
        text = f"{hottest.name} is at {hottest.temperature_c:.1f} C, and the board clocks down at {trip:g}"
        yield Check("temperature", "problem", text, "check fan and heat sink")
    elif hottest is not None:
        yield Check("temperature", "ok", f"{hottest.name} {hottest.temperature_c:.1f} C")
    else:
        fix = "cat /sys/class/thermal/thermal_zone*/temp; check the drivers in dmesg"
        yield Check("temperature", "problem", "no temperature zone can be read", fix)


def _jtop(machine: Machine, config: Config | None) -> Check:
    jtop = machine.jtop
    if jtop is None:
        return Check("jtop", "ok", "not asked")
    if jtop.kind == "answers":
        return Check("jtop", "ok", "its service answers")
    wanted = config is not None and config.budget.telemetry == "jtop"
    fix = _JTOP_FIXES.get(jtop.kind, "journalctl -u jtop.service").format(user=machine.user.name)
    # What the kernel's own files tell is enough; who asked for jtop is to have it.
    instead = "" if wanted else "; the kernel's own files are read instead"
    status: Status = "advice" if jtop.kind == "not-installed" and not wanted else "problem"
    return Check("jtop", status, jtop.text + instead, fix)


def _groups(machine: Machine) -> Iterator[Check]:
    if machine.user.root:
        yield Check("groups", "ok", "root needs none")
        return
    lacking = [name for name in _GROUPS
               if name in machine.groups and machine.groups[name] not in machine.user.groups]  # fmt: skip
    if lacking:
        text = f"{machine.user.name} is not in {' and '.join(lacking)}: the accelerator refuses who is not"
        fix = f"sudo usermod -aG {','.join(lacking)} {machine.user.name}, then log in again"
        yield Check("groups", "problem", text, fix)
    else:
        yield Check("groups", "ok", f"{machine.user.name} is in {' and '.join(_GROUPS)}")


def _socket_group(machine: Machine, config: Config | None) -> Iterator[Check]:
    group = None if config is None else config.server.group
    if group is None or not machine.groups:
        return
    if group in machine.groups:
        yield Check("socket group", "ok", group)
        return
    text = f"server.group: no group {group!r} on this machine, and the daemon does not start without it"
    fix = f"sudo groupadd --system {shlex.quote(group)}, or name another in server.group"
    yield Check("socket group", "problem", text, fix)


def _nvmap(machine: Machine) -> Check:
    if machine.nvmap == "open":
        return Check("/dev/nvmap", "ok", "can be opened")
    if machine.nvmap == "missing":
        text = "is not there: a container without the accelerator, or a driver that is not up"
        return Check("/dev/nvmap", "problem", text, "docker run --runtime nvidia ...; outside of one: sudo reboot")
    fix = f"sudo usermod -aG video,render {machine.user.name}, then log in again"
    return Check("/dev/nvmap", "problem", f"{machine.user.name} may not open it", fix)


def _swap(machine: Machine) -> Check:
    memory = None if machine.sample is None else machine.sample.memory
    if memory is None:
        return Check("swap", "advice", "memory is not told", "")
    zram = [one for one in machine.swaps if "zram" in one]
    if memory.swap_used_bytes > memory.swap_total_bytes // 2 > 0:
        text = (
            f"{shown(memory.swap_used_bytes)} of {shown(memory.swap_total_bytes)} are in use: memory is short already"
        )
        return Check(
            "swap", "problem", text, "free -h; ps aux --sort=-rss | head; sudo systemctl set-default multi-user"
        )
    if zram and memory.total_bytes < _SMALL_BOARD:
        text = "zram takes memory from the accelerator, whose own cannot be swapped"
        fix = "sudo systemctl disable nvzramconfig; a swap file on NVMe in its place; sudo reboot"
        return Check("swap", "advice", text, fix)
    if not memory.swap_total_bytes and memory.total_bytes < _SMALL_BOARD:
        text = "none: other programs cannot make room while a model is loaded"
        fix = "sudo sh -c 'fallocate -l 4G /swapfile; chmod 600 /swapfile; mkswap /swapfile; swapon /swapfile'"
        return Check("swap", "advice", text, fix)
    return Check("swap", "ok", f"{shown(memory.swap_total_bytes)}, {shown(memory.swap_used_bytes)} in use")


def _blocks(machine: Machine, plan: Plan | None) -> Check:
    memory = None if machine.sample is None else machine.sample.memory
    if memory is None or memory.free_blocks_4mb is None:
        return Check("large blocks", "advice", "the kernel does not tell how much is free in one piece", "")
    large = memory.free_blocks_4mb * _LARGE_BLOCK
    wanted = memory.available_bytes // 2 if plan is None else min(plan.needs.peak, memory.available_bytes)
    said = f"{memory.free_blocks_4mb} free blocks of 4 MB ({shown(large)})"
    if large >= _FEW_BLOCKS * wanted:
        return Check("large blocks", "ok", said)
    reported = _version(machine.identity.l4t) >= _FRAGMENTS_SINCE
    text = f"{said}, while {shown(wanted)} are wanted: memory is fragmented, and large allocations may fail"
    return Check(
        "large blocks", "problem" if reported else "advice", text, f"{_COMPACT}; start the daemon early at boot"
    )


def _engine(machine: Machine, config: Config | None) -> Check:
    engines = machine.engines
    cuda = config is not None and config.engine.device == "cuda"
    reinstall = "pip uninstall -y onnxruntime onnxruntime-gpu; pip install onnxruntime"
    if len(engines) > 1:
        text = "onnxruntime and onnxruntime-gpu are both installed: one package, of which one has overwritten the other"
        return Check("engine", "problem", text, f"{reinstall}-gpu")
    if not engines:
        return Check("engine", "problem", "onnxruntime is not installed", "pip install onnxruntime")
    ((name, version),) = engines.items()
    if _version(version) < _OLDEST_ENGINE:
        needed = ".".join(map(str, _OLDEST_ENGINE))
        return Check("engine", "problem", f"{name} {version}: needs {needed} or later", f"pip install -U {name}")
    if cuda and name == "onnxruntime":
        text = f"the configuration says device: cuda, and {name} {version} runs on the processor alone"
        return Check("engine", "problem", text, f"{reinstall}-gpu  (on JetPack 6 from NVIDIA's Jetson index)")
    return Check("engine", "ok", f"{name} {version}")


def _disk(machine: Machine) -> Check:
    free = machine.disk_free_bytes
    if free is None:
        return Check("disk", "advice", "its free space is not told", "")
    if free < _LEAST_DISK:
        return Check("disk", "problem", f"{shown(free)} free: a new bundle has no room", "df -h; sudo apt-get clean")
    return Check("disk", "ok", f"{shown(free)} free")


def _memory(machine: Machine, plan: Plan | None) -> Iterator[Check]:
    if plan is None:
        return
    room, peak = plan.room, plan.needs.peak
    said = f"the bundle needs {shown(peak)}, and {shown(room.allowed)} may be taken ({shown(room.available)} available)"
    if plan.fits:
        yield Check("memory", "ok", said)
        return
    fitting = [_done(change, machine) for change in plan.changes if change.fits]
    yield Check("memory", "problem", said, "; or ".join(fitting) or "a smaller model, or a larger board")


def _done(change: Change, machine: Machine) -> str:
    """What to do for it."""
    if not change.what.startswith(FREE_MEMORY):
        return f"{change.what} ({shown(change.peak)})"
    return f"{change.what}: {_NO_DESKTOP if machine.identity.tegra else 'close other programs'}"


def _version(text: str | None) -> tuple[int, ...]:
    parts = []
    for part in (text or "").split("."):
        if not part.isdecimal():
            break
        parts.append(int(part))
    return tuple(parts)
