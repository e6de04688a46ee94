"""The files of an Orin, device by device, as its kernel shows them when it has just booted. Knows no load and no time.

Names and units as the kernels of JetPack 6.2 and 7.2 have them; where both differ, the release says which.
"""

from __future__ import annotations

from ..boards import SHUTDOWN_C, SOFTWARE_THROTTLE_C, Board
from .files import AttributeFiles, Value
from .release import Release

ZONES = ("cpu", "gpu", "cv0", "cv1", "cv2", "soc0", "soc1", "soc2", "tj")
COOLING_DEVICES = (
    ("gpu-throttle-alert", 1),
    ("cpu-throttle-alert", 1),
    ("hot-surface-alert", 1),
    ("devfreq-17000000.gpu", 6),
    ("cpufreq-cpu0", 20),
    ("pwm-fan", 3),
)
OVER_CURRENT = ("oc1", "oc2", "oc3")

THERMAL = "sys/devices/virtual/thermal"
CPUS = "sys/devices/system/cpu"
GPU = "sys/devices/platform/bus@0/17000000.gpu"
GPU_CLOCK = f"{GPU}/devfreq/17000000.gpu"
MEMORY_CLOCK = "sys/kernel/debug/bpmp/debug/clk/emc"
MEMORY_CAP = "sys/kernel/nvpmodel_clk_cap/emc"
SOCTHERM = "sys/devices/platform/soctherm-oc-event/hwmon"
FAN = "sys/devices/platform/pwm-fan/hwmon"
TACHOMETER = "sys/devices/platform/bus@0/39c0000.tachometer/hwmon"
POWER_BUS = "sys/devices/platform/bus@0/c240000.i2c/i2c-1"
_DEVICE_TREE = "sys/firmware/devicetree/base"

_LOWEST_GPU_HZ = 306_000_000
_LOWEST_CPU_KHZ = 729_600
_ENGINES = ("ape", "nvdec", "nvenc", "nvjpg", "ofa", "se", "vic")


def write_devices(files: AttributeFiles, board: Board, release: Release) -> None:
    _identity(files, board, release)
    _thermal(files)
    _power(files, board, release)
    _over_current(files, release)
    _fan(files, release)
    _gpu(files, board, release)
    _cpus(files, board)
    _clocks(files, board)


def rail_channels(board: Board) -> tuple[tuple[str, tuple[str, str, str]], ...]:
    """The sensors' addresses and what their three channels are called; ``NC``: nothing is connected."""
    if board.rails[0] == "VDD_IN":
        return (("1-0040", (board.rails[0], board.rails[1], board.rails[2])),)
    return (
        ("1-0040", (board.rails[0], board.rails[1], board.rails[2])),
        ("1-0041", ("NC", board.rails[3], "NC")),
    )


def rail_place(board: Board, release: Release, rail: str) -> tuple[str, int]:
    """The sensor's folder and the number of the channel."""
    for index, (address, channels) in enumerate(rail_channels(board)):
        if rail in channels:
            return _sensor(address, release.first_power_hwmon + index), channels.index(rail) + 1
    raise ValueError(f"{board.name} has no rail {rail}")


def rail_millivolts(board: Board, rail: str) -> int:
    if rail == "NC":
        return 0
    return 19000 if board.rails[0] != "VDD_IN" and rail.startswith("VDD") else 5000


def _sensor(address: str, hwmon: int) -> str:
    return f"{POWER_BUS}/{address}/hwmon/hwmon{hwmon}"


def _identity(files: AttributeFiles, board: Board, release: Release) -> None:
    part = board.parts[-1] if board.parts[0].startswith("p3767") else board.parts[0]
    carrier = "p3768-0000" if part.startswith("p3767") else "p3737-0000"
    super_kit = "-super" if part.startswith("p3767") else ""
    texts = {
        "model": f"NVIDIA {board.title} Developer Kit",
        "serial-number": "1420000000001",
        "compatible": f"nvidia,{carrier}+{part}{super_kit}\0nvidia,{part}\0nvidia,tegra234",
        "nvidia,boardids": part[1:].replace("-", ":"),
        "nvidia,dtsfilename": f"/dvs/kernel/kernel-dts/tegra234-{part}-{carrier}-a0.dts",
        "bus@0/gpu@17000000/name": "gpu",
    }
    for name, text in texts.items():
        files.write_text(f"{_DEVICE_TREE}/{name}", f"{text}\0")
    major, _, revision = release.l4t.partition(".")
    files.write(
        "etc/nv_tegra_release",
        f"# R{major} (release), REVISION: {revision}, GCID: 42132812, BOARD: generic, EABI: aarch64, "
        "DATE: Thu Sep 18 22:54:44 UTC 2025",
    )


def _thermal(files: AttributeFiles) -> None:
    trips = (("passive", SOFTWARE_THROTTLE_C), ("critical", SHUTDOWN_C))
    for index, zone in enumerate(ZONES):
        folder = f"{THERMAL}/thermal_zone{index}"
        files.write_all(folder, {"type": f"{zone}-thermal", "temp": 45000, "mode": "enabled", "policy": "step_wise"})
        for trip, (kind, celsius) in enumerate(trips):
            values: dict[str, Value] = {"type": kind, "temp": round(1000 * celsius), "hyst": 0}
            files.write_all(folder, {f"trip_point_{trip}_{name}": value for name, value in values.items()})
        files.link(f"sys/class/thermal/thermal_zone{index}", folder)
    for index, (name, states) in enumerate(COOLING_DEVICES):
        folder = f"{THERMAL}/cooling_device{index}"
        files.write_all(folder, {"type": name, "max_state": states, "cur_state": 0})
        files.link(f"sys/class/thermal/cooling_device{index}", folder)


def _power(files: AttributeFiles, board: Board, release: Release) -> None:
    (files.root / "sys/class/power_supply").mkdir(parents=True)
    (most_ma, highest_ma, shunt) = (3520, 5000, 5000) if board.rails[0] == "VDD_IN" else (32760, 32760, 2000)
    for index, (address, channels) in enumerate(rail_channels(board)):
        folder = _sensor(address, release.first_power_hwmon + index)
        files.write(f"{POWER_BUS}/{address}/name", "ina3221")
        files.write(f"{folder}/name", "ina3221")
        for channel, label in enumerate(channels, 1):
            files.write_all(folder, {f"in{channel}_label": label, f"in{channel}_input": rail_millivolts(board, label)})
            files.write_all(folder, {f"in{channel}_enable": 1, f"shunt{channel}_resistor": shunt})
            values = {"input": 0, "max": most_ma, "crit": highest_ma, "max_alarm": 0, "crit_alarm": 0}
            files.write_all(folder, {f"curr{channel}_{name}": value for name, value in values.items()})
        files.write_all(folder, {"in7_label": "sum of shunt voltages", "in7_input": 7})
        files.link(f"sys/bus/i2c/devices/{address}", f"{POWER_BUS}/{address}")
        files.link(f"sys/bus/i2c/drivers/ina3221/{address}", f"{POWER_BUS}/{address}")
        files.link(f"sys/class/hwmon/hwmon{release.first_power_hwmon + index}", folder)


def _over_current(files: AttributeFiles, release: Release) -> None:
    folder = f"{SOCTHERM}/hwmon{release.socthermal_hwmon}"
    files.write(f"{folder}/name", "soctherm_oc")
    for name in OVER_CURRENT:
        files.write_all(folder, {f"{name}_event_cnt": 0, f"{name}_throt_en": 1})
    files.link(f"sys/class/hwmon/hwmon{release.socthermal_hwmon}", folder)


def _fan(files: AttributeFiles, release: Release) -> None:
    fan = f"{FAN}/hwmon{release.fan_hwmon}"
    files.write_all(fan, {"name": "pwmfan", "pwm1": 60, "pwm1_enable": 1})
    files.link(f"sys/class/hwmon/hwmon{release.fan_hwmon}", fan)
    tachometer = f"{TACHOMETER}/hwmon{release.tachometer_hwmon}"
    files.write_all(tachometer, {"name": "pwm_tach", "rpm": 1500})
    files.link(f"sys/class/hwmon/hwmon{release.tachometer_hwmon}", tachometer)


def _gpu(files: AttributeFiles, board: Board, release: Release) -> None:
    files.write_all(GPU, {"load": 0, "railgate_enable": 1, "tpc_pg_mask": 0, "power/control": "auto"})
    if release.has_3d_scaling_switch:
        files.write(f"{GPU}/enable_3d_scaling", 1)
    files.link(f"{GPU}/of_node", f"{_DEVICE_TREE}/bus@0/gpu@17000000")
    highest = round(1e6 * board.fastest.gpu_mhz)
    files.write_all(
        GPU_CLOCK,
        {
            "cur_freq": _LOWEST_GPU_HZ,
            "min_freq": _LOWEST_GPU_HZ,
            "max_freq": round(1e6 * board.default.gpu_mhz),
            "governor": "nvhost_podgov",
            "available_governors": "nvhost_podgov performance userspace",
            "available_frequencies": " ".join(map(str, range(_LOWEST_GPU_HZ, highest + 1, 102_000_000))),
        },
    )
    files.link(f"{GPU_CLOCK}/device", GPU)
    files.link("sys/class/devfreq/17000000.gpu", GPU_CLOCK)


def _cpus(files: AttributeFiles, board: Board) -> None:
    count, mode = board.fastest.cpus, board.default
    highest = round(1e3 * board.fastest.cpu_mhz)
    for name in ("online", "possible", "present"):
        files.write(f"{CPUS}/{name}", f"0-{count - 1}")
    caches = ((1, "Data", "64K"), (1, "Instruction", "64K"), (2, "Unified", "256K"), (3, "Unified", "2048K"))
    for index in range(count):
        folder = f"{CPUS}/cpu{index}"
        files.write(f"{folder}/online", int(index < mode.cpus))
        files.write(f"{folder}/cpufreq/scaling_governor", "schedutil")
        for kind, lowest, most in (
            ("scaling", _LOWEST_CPU_KHZ, round(1e3 * mode.cpu_mhz)),
            ("cpuinfo", 115_200, highest),
        ):
            values = {"min_freq": lowest, "max_freq": most, "cur_freq": round(1e3 * mode.cpu_mhz)}
            files.write_all(f"{folder}/cpufreq", {f"{kind}_{name}": value for name, value in values.items()})
        for state, name in enumerate(("WFI", "c7")):
            files.write_all(f"{folder}/cpuidle/state{state}", {"name": name, "disable": 0})
        for cache, (level, kind, size) in enumerate(caches):
            files.write_all(f"{folder}/cache/index{cache}", {"level": level, "type": kind, "size": size})


def _clocks(files: AttributeFiles, board: Board) -> None:
    """What only root sees."""
    rate = round(1e6 * board.default.memory_mhz)
    files.write_all(
        MEMORY_CLOCK, {"rate": rate, "max_rate": 3_199_000_000, "min_rate": 204_000_000, "mrq_rate_locked": 0}
    )
    files.write(MEMORY_CAP, rate)
    files.write("sys/kernel/debug/cactmon/mc_all", 0)
    for index in range(2):
        files.write(f"sys/kernel/debug/bpmp/debug/clk/nafll_gpc{index}/pto_counter", _LOWEST_GPU_HZ)
    for engine in _ENGINES:
        values = {"enable_count": 0, "rate": 0, "max_rate": (1 << 64) - 1, "min_rate": 0}
        files.write_all(f"sys/kernel/debug/clk/{engine}", {f"clk_{name}": value for name, value in values.items()})
    files.write(
        "sys/kernel/debug/nvmap/iovmm/maps",
        f"{'CLIENT':<30}{'PROCESS':<13}{'PID':<9}SIZE\n{'total':<50}0K",
    )
