"""A tree of files as a running Orin has them, and a hand on every one that matters. Knows no heat and no time: whoever
simulates those calls ``show``.

    tree = BoardTree.build(folder, board_named("orin-nano-8"))
    tree.show(Sample(0.0, "plant", power_mw=14_500, zones=(Zone("tj", 78.5),), gpu=GpuReading(612.0, load=0.97)))
    SysfsSource(tree.root).latest()   # reads the same values back

``show`` writes what a sample holds and leaves the rest as it is. All values change in place, so that whoever reads the
tree, the real jtop service in a namespace included, sees what it would see of a kernel.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..boards import Board, board_named
from ..telemetry.sample import GpuReading, MemoryReading, Rail, Sample, Throttling, Zone
from . import devices, programs
from .files import AttributeFiles
from .release import JETPACK_6_2, JETPACK_7_2, Release

_ABOUT = "simulated.json"
_KB = 1024
_BLOCK = 4 << 20
_FREE_BLOCKS = (500, 300, 200, 100, 60, 40, 20, 10, 8, 5)
"""Of 4 KB, 8 KB and so on, below those of 4 MB: a board that has been up for a while."""
_FROM_THE_MACHINE = (
    "self", "thread-self", "sys", "mounts", "filesystems", "version", "loadavg", "uptime", "cmdline", "cgroups",
    "swaps", "fs", "net", "tty", "modules", "devices",
)  # fmt: skip
"""In ``/proc`` of a namespace, these are the machine's own."""
_SHARES = {"VDD_IN": 1.0, "VDD_CPU_GPU_CV": 0.45, "VDD_SOC": 0.2}
_AGX_SHARES = {"VDD_GPU_SOC": 0.55, "VDD_CPU_CV": 0.15, "VIN_SYS_5V0": 0.2, "VDDQ_VDD2_1V8AO": 0.1}
"""How a total is spread over the rails where a sample has no rails."""


class BoardTree:
    """Below ``root``: ``sys``, ``proc``, ``etc``, ``var`` and ``bin``."""

    def __init__(self, root: Path, board: Board, release: Release) -> None:
        self.root = root
        self.board = board
        self.release = release
        self._files = AttributeFiles(root)
        self._cpu_ticks = [[1000, 0, 500, 100_000, 10, 0, 5, 0, 0, 0] for _ in range(board.fastest.cpus)]

    @classmethod
    def build(cls, root: Path, board: Board, release: Release = JETPACK_6_2) -> BoardTree:
        """In a folder that is empty or not there yet."""
        tree = cls(root.absolute(), board, release)
        files = tree._files
        devices.write_devices(files, board, release)
        files.write("etc/nvpmodel.conf", programs.configuration(board))
        files.write("etc/fstab", "/dev/root / ext4 defaults 0 1")
        files.write("etc/group", "root:x:0:\nvideo:x:44:\nrender:x:104:\njtop:x:1001:")
        for name, text in (("nvpmodel", programs.nvpmodel(board)), ("jetson_clocks", programs.jetson_clocks(board))):
            files.write_text(f"bin/{name}", text)
            (tree.root / "bin" / name).chmod(0o755)
        for name in _FROM_THE_MACHINE:
            (tree.root / "proc").mkdir(exist_ok=True)
            (tree.root / "proc" / name).symlink_to(tree.root / "realproc" / name)
        (tree.root / "proc/device-tree").symlink_to("/sys/firmware/devicetree/base")
        files.write_text("proc/cpuinfo", "".join(_cpu_lines(index) for index in range(board.fastest.cpus)))
        files.write(_ABOUT, json.dumps({"board": board.name, "jetpack": release.jetpack}))
        tree.set_power_mode(board.default.name)
        available = board.ram_bytes - (2 << 30)
        blocks = available * 3 // 4 // _BLOCK  # shortly after boot, most of what is free lies together
        tree.set_memory(MemoryReading(board.ram_bytes, available, board.ram_bytes // 2, 0, blocks))
        for rail in tree._rails_of(4500):
            tree.set_rail(rail.name, rail.power_mw)
        tree.advance(0.0)
        return tree

    @classmethod
    def at(cls, root: Path) -> BoardTree:
        """One that is there already."""
        about = json.loads((root / _ABOUT).read_text(encoding="utf-8"))
        release = next(one for one in (JETPACK_6_2, JETPACK_7_2) if one.jetpack == about["jetpack"])
        return cls(root.absolute(), board_named(about["board"]), release)

    def show(self, sample: Sample) -> None:
        """What the board is to be like now; what the sample does not hold stays as it is."""
        if sample.power_mode is not None:
            self.set_power_mode(sample.power_mode)
        for zone in sample.zones:
            self.set_temperature(zone.name, zone.temperature_c)
        rails = sample.rails or (() if sample.power_mw is None else self._rails_of(sample.power_mw))
        for rail in rails:
            self.set_rail(rail.name, rail.power_mw)
        self.set_gpu(sample.gpu)
        if sample.memory is not None:
            self.set_memory(sample.memory)
        self.set_throttling(sample.throttling)
        if sample.fan is not None:
            self.set_fan(sample.fan)

    # Values

    def set_temperature(self, zone: str, celsius: float) -> None:
        """-256 is what a zone shows whose part of the chip is switched off."""
        self._files.write(f"{self._zone(zone)}/temp", round(1000 * celsius))

    def set_rail(self, rail: str, power_mw: float) -> None:
        folder, channel = devices.rail_place(self.board, self.release, rail)
        milliamperes = 1000 * power_mw / devices.rail_millivolts(self.board, rail)
        self._files.write(f"{folder}/curr{channel}_input", round(milliamperes))

    def set_gpu(self, gpu: GpuReading) -> None:
        if gpu.max_clock_mhz is not None:
            self._files.write(f"{devices.GPU_CLOCK}/max_freq", round(1e6 * gpu.max_clock_mhz))
        if gpu.clock_mhz is not None:
            self._files.write(f"{devices.GPU_CLOCK}/cur_freq", round(1e6 * gpu.clock_mhz))
            self._files.write("sys/kernel/debug/bpmp/debug/clk/nafll_gpc0/pto_counter", round(1e6 * gpu.clock_mhz))
        if gpu.load is not None:
            self._files.write(f"{devices.GPU}/load", round(1000 * gpu.load))

    def set_memory(self, memory: MemoryReading) -> None:
        free = max(0, memory.available_bytes - (512 << 20))
        kilobytes = {
            "MemTotal": memory.total_bytes // _KB,
            "MemFree": free // _KB,
            "MemAvailable": memory.available_bytes // _KB,
            "Buffers": 40 * _KB,
            "Cached": (memory.available_bytes - free) // _KB,
            "SwapCached": 0,
            "SwapTotal": memory.swap_total_bytes // _KB,
            "SwapFree": (memory.swap_total_bytes - memory.swap_used_bytes) // _KB,
            "Shmem": 20 * _KB,
            "SReclaimable": 58 * _KB,
            "NvMapMemFree": 0,
            "NvMapMemUsed": 0,
        }
        lines = [f"{name + ':':<16}{value:>9} kB" for name, value in kilobytes.items()]
        self._files.write("proc/meminfo", "\n".join(lines))
        if memory.free_blocks_4mb is not None:
            blocks = " ".join(f"{count:>6}" for count in (*_FREE_BLOCKS, memory.free_blocks_4mb))
            self._files.write("proc/buddyinfo", f"Node 0, zone   Normal {blocks}")

    def set_throttling(self, throttling: Throttling) -> None:
        self.set_over_current(dict(throttling.over_current_events))
        for device in throttling.cooling:
            self.set_cooling(device.name, device.state)

    def set_over_current(self, events: Mapping[str, int]) -> None:
        for name, count in events.items():
            folder = f"{devices.SOCTHERM}/hwmon{self.release.socthermal_hwmon}"
            self._files.write(f"{folder}/{name}_event_cnt", count)

    def set_cooling(self, name: str, state: int) -> None:
        index = next(at for at, (device, _) in enumerate(devices.COOLING_DEVICES) if device == name)
        self._files.write(f"{devices.THERMAL}/cooling_device{index}/cur_state", state)

    def set_fan(self, speed: float) -> None:
        """0 to 1."""
        self._files.write(f"{devices.FAN}/hwmon{self.release.fan_hwmon}/pwm1", round(255 * speed))

    def set_power_mode(self, name: str) -> None:
        """As ``nvpmodel -m`` does; nothing where the board is in that mode."""
        mode = self.board.mode(name)
        if mode is None:
            raise ValueError(f"{self.board.name} has no power mode {name}")
        status = f"pmode:{mode.id:04}"
        if (self.root / programs.STATUS).exists() and self._files.read(programs.STATUS) == status:
            return
        for file, value in programs.caps(self.board, mode).items():
            self._files.write(file, value)
        clock = float(self._files.read(f"{devices.GPU_CLOCK}/cur_freq")) / 1e6
        self.set_gpu(GpuReading(min(clock, mode.gpu_mhz)))
        self._files.write(programs.STATUS, status)

    def advance(self, seconds: float, cpu_load: float = 0.2) -> None:
        """The counters that a use of the processors is told from."""
        ticks = round(seconds * os.sysconf("SC_CLK_TCK"))
        for counts in self._cpu_ticks:
            counts[0] += round(ticks * cpu_load)
            counts[3] += ticks - round(ticks * cpu_load)
        rows = [("", [sum(column) for column in zip(*self._cpu_ticks, strict=True)])]
        rows += [(str(index), counts) for index, counts in enumerate(self._cpu_ticks)]
        lines = [f"cpu{name:<2} {' '.join(map(str, counts))}" for name, counts in rows]
        tail = "intr 1 0\nctxt 1\nbtime 1700000000\nprocesses 100\nprocs_running 1\nprocs_blocked 0"
        self._files.write("proc/stat", "\n".join([*lines, tail]))

    # Faults

    def break_zone(self, zone: str) -> None:
        """Its driver answers with nothing."""
        self._files.write_text(f"{self._zone(zone)}/temp", "")

    def break_rail(self, rail: str) -> None:
        """Its sensor answers with what is no number."""
        folder, channel = devices.rail_place(self.board, self.release, rail)
        self._files.write(f"{folder}/curr{channel}_input", "garbage")

    def hide_rail(self, rail: str) -> None:
        """Its current is gone, as after a bus error; ``show_rail`` brings it back."""
        folder, channel = devices.rail_place(self.board, self.release, rail)
        self._files.hide(f"{folder}/curr{channel}_input")

    def show_rail(self, rail: str) -> None:
        folder, channel = devices.rail_place(self.board, self.release, rail)
        self._files.show(f"{folder}/curr{channel}_input")

    def hide_gpu(self) -> None:
        """As early at boot, before its driver is up."""
        self._files.hide("sys/class/devfreq/17000000.gpu")

    def show_gpu(self) -> None:
        self._files.show("sys/class/devfreq/17000000.gpu")

    def break_nvpmodel(self, command: str = "exit 3") -> None:
        """It runs this instead of answering: under high load it does fail in the field."""
        self._files.write(programs.FAULT, command)

    def mend_nvpmodel(self) -> None:
        (self.root / programs.FAULT).unlink(missing_ok=True)

    def _zone(self, name: str) -> str:
        return f"{devices.THERMAL}/thermal_zone{devices.ZONES.index(name)}"

    def _rails_of(self, power_mw: int) -> tuple[Rail, ...]:
        shares = _SHARES if self.board.rails[0] == "VDD_IN" else _AGX_SHARES
        return tuple(Rail(name, round(power_mw * share)) for name, share in shares.items())


def as_shown(tree: BoardTree, sample: Sample) -> Sample:
    """A sample as it can be read back from a tree: clocks in whole hertz, currents in whole milliamperes."""
    rails = []
    for rail in sample.rails:
        millivolts = devices.rail_millivolts(tree.board, rail.name)
        rails.append(Rail(rail.name, millivolts * round(1000 * rail.power_mw / millivolts) // 1000))
    zones = tuple(Zone(zone.name, round(1000 * zone.temperature_c) / 1000) for zone in sample.zones)
    return replace(sample, rails=tuple(rails), zones=zones)


def _cpu_lines(index: int) -> str:
    """Of a Cortex-A78AE."""
    return (
        f"processor\t: {index}\nBogoMIPS\t: 62.50\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp "
        "asimdhp cpuid asimdrdm lrcpc dcpop asimddp uscat ilrcpc flagm paca pacg\nCPU implementer\t: 0x41\n"
        "CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd42\nCPU revision\t: 1\n\n"
    )
