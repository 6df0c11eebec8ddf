"""Descriptions of the machine and of the tools' versions, for the report."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def describe() -> str:
    memory = _value("/proc/meminfo", "MemTotal").split()[0]
    system = _value("/etc/os-release", "PRETTY_NAME", "=").strip('"')
    return (
        f"{os.cpu_count()} x {_value('/proc/cpuinfo', 'model name')}, {int(memory) / 2**20:.0f} GiB of memory, "
        f"{system}, Linux {platform.release()}"
    )


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
    folder = Path(__file__).parent
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout.splitlines()[0]


def _value(path: str, key: str, separator: str = ":") -> str:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(separator)
        if name.strip() == key:
            return value.strip()
    return "unknown"
