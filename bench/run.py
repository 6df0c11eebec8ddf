#!/usr/bin/env python3
"""Runs weft's benchmarks against their peers, and writes a table, JSON and plots.

    bench/run.py                                  all sections, just under an hour
    bench/run.py --quick                          a few minutes: fewer rounds, sizes and hosts
    bench/run.py --sections collectives,memory    some sections

Peers are installed from PyPI into build/bench; nothing else is changed on the machine. If a peer cannot be installed, the
table names it with the reason. bench/README.md describes what is measured, and how.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).parent))

from suite import (  # noqa: E402
    checkpoints,
    collectives,
    compute,
    context,
    emulated,
    kernels,
    machine,
    memory_use,
    peers,
    simulated,
    steps,
    torch_package,
)
from suite.launch import REPOSITORY  # noqa: E402
from suite.progress import log  # noqa: E402
from suite.rows import Row, measurements_table, verdicts_of, verdicts_table  # noqa: E402
from suite.setting import Setting  # noqa: E402

# Each section yields a row as soon as it is measured.
SECTIONS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "collectives": collectives.measure,
    "steps": steps.measure,
    "compute": compute.measure,
    "kernels": kernels.measure,
    "context": context.measure,
    "memory": memory_use.measure,
    "checkpoints": checkpoints.measure,
    "host-collectives": emulated.measure_collectives,
    "host-steps": emulated.measure_steps,
    "simulated": simulated.measure,
    "torch": torch_package.measure,
}
PROGRAM_NAMES = ("collectives", "context", "kernels", "model_step", "simulated_scaling", "training_step")
PROGRAMS = [f"weft_bench_{name}" for name in PROGRAM_NAMES]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, sizes and hosts")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="sections to run (default: %(default)s)")
    results = REPOSITORY / "build" / "bench" / "results"
    parser.add_argument("--out", type=Path, default=results, help="folder for the results (default: build/bench/results)")
    arguments = parser.parse_args()
    arguments.sections = arguments.sections.split(",")
    if unknown := [name for name in arguments.sections if name not in SECTIONS]:
        parser.error(f"unknown section: {', '.join(unknown)}; expected some of {', '.join(SECTIONS)}")
    return arguments


def lock_build() -> TextIO:
    """Takes the lock of `tools/script_functions.sh`. Another script would replace programs while they are measured."""
    file = REPOSITORY / "build" / "scripts.lock"
    file.parent.mkdir(exist_ok=True)
    lock = file.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"run.py: {file.read_text().strip()} uses build/ of this tree: wait for its end, or work in another clone", file=sys.stderr)
        sys.exit(2)
    lock.truncate(0)
    lock.write(f"bench/run.py (process {os.getpid()})\n")
    lock.flush()
    return lock


def build() -> Path:
    """Builds weft's programs with the preset `release`; returns their folder."""
    folder = REPOSITORY / "build" / "release"
    run_or_exit("cmake", "--preset", "release")  # tools/test.sh compiles benchmarks with other options.
    run_or_exit("cmake", "--build", str(folder), "--target", *PROGRAMS)
    return folder / "bench"


def run_or_exit(*command: str) -> None:
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"{ended.stdout[-4000:]}{ended.stderr[-4000:]}\nfailed: {shlex.join(command)}")


def report(about: dict[str, object], sections: dict[str, list[Row]]) -> str:
    text = f"{about['machine']}; {about['load']}.\n\n"
    text += ", ".join(f"{name} {version}" for name, version in about["versions"].items()) + ".\n\n"
    text += f"    {about['command']}\n\n## Goals\n\n"
    text += verdicts_table(verdicts_of([row for rows in sections.values() for row in rows]))
    for name, rows in sections.items():
        text += f"\n## {name}\n\n{measurements_table(rows)}"
    return text


def plot(available: peers.Peers, results: Path) -> None:
    if reason := available.missing.get("plots"):
        log(f"no plots: {reason}")
        return
    script = Path(__file__).parent / "suite" / "plots.py"
    subprocess.run([str(available.python), str(script), str(results)], check=True)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Leaves all contexts, which end their processes.
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with lock_build():
        measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    versions = machine.versions()  # Of the sources as they are built.
    log("building weft's programs")
    programs = build()
    log("installing peers")
    available = peers.prepare(REPOSITORY / "build" / "bench", with_weft_package="torch" in arguments.sections)
    about: dict[str, object] = {
        "machine": machine.describe(),
        "load": machine.load(),
        "versions": versions | available.versions(),
        "command": shlex.join([os.path.relpath(sys.argv[0], REPOSITORY), *sys.argv[1:]]),
    }
    sections: dict[str, list[Row]] = {}
    for name in arguments.sections:
        log(name)
        rows = sections.setdefault(name, [])
        for row in SECTIONS[name](Setting(programs, available, arguments.quick)):
            rows.append(row)
            write(arguments.out, about, sections)  # An interrupted run keeps its results.
    plot(available, arguments.out / "results.json")
    log(f"written: {arguments.out}")


def write(folder: Path, about: dict[str, object], sections: dict[str, list[Row]]) -> None:
    rows = {name: [dataclasses.asdict(row) for row in rows] for name, rows in sections.items()}
    (folder / "results.json").write_text(json.dumps({**about, "sections": rows}, indent=1) + "\n")
    (folder / "table.md").write_text(report(about, sections))


if __name__ == "__main__":
    main()
