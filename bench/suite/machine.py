"""Descriptions of the machine and of the tools' versions, for the report."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
AMX = "AMX"
UNKNOWN = "unknown"


def describe() -> str:
    memory = _value("/proc/meminfo", "MemTotal").split()[0]
    system = _value("/etc/os-release", "PRETTY_NAME", "=").strip('"')
    return (
        f"{os.cpu_count()} x {_value('/proc/cpuinfo', 'model name')} ({bf16_instructions(CPUINFO.read_text())}), "
        f"{int(memory) / 2**20:.0f} GiB of memory, "
        f"{system}, Linux {platform.release()}"
    )


def bf16_instructions(cpuinfo: str) -> str:
    """The instructions on which products of bf16 run, from the text of /proc/cpuinfo."""
    flags = next((line.split() for line in cpuinfo.splitlines() if line.startswith("flags")), [])
    if "amx_bf16" in flags:
        return AMX
    return "AVX512-BF16" if "avx512_bf16" in flags else "no bf16 instructions"


def load() -> str:
    return "load before the first measurement: " + " ".join(f"{value:.2f}" for value in os.getloadavg())


def versions() -> dict[str, str]:
    return {
        "Open MPI": _first_line("mpirun", "--version").rsplit(" ", 1)[-1],
        "compiler": _first_line("g++", "--version"),
        "weft": _first_line("git", "describe", "--always", "--dirty"),
        "Python": platform.python_version(),
    }


def _first_line(*command: str) -> str:
    """The first line that `command` prints; "unknown" if it fails, as git does where there is no history."""
    try:
        ended = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return next(iter(ended.stdout.splitlines()), UNKNOWN)


def _value(path: str, key: str, separator: str = ":") -> str:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(separator)
        if name.strip() == key:
            return value.strip()
    return UNKNOWN
