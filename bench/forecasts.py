#!/usr/bin/env python3
"""Forecasts of `weft plan` against runs: the table of docs/planning.md.

    bench/forecasts.py                        all rows, 3 rounds, about 5 minutes
    bench/forecasts.py --rounds 1 --rows 5,6  some rows (from 1), for a try

A round forecasts each row with --measure and then runs it, so that the costs and the run see the same speed of the
machine, and all rows see the same disturbances. A value of a round is the median of its steps but the first ones. The
table has the medians over the rounds, the smallest and the largest value, and the largest share of the cores that other
programs used in the second before a run. A row is suspect if that is more than a few percent.

Rows between hosts need root, for tools/emulated_hosts.sh. REQUIRES: a build of `weft` (preset release).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEFT = ROOT / "build/release/bin/weft"
DIM_320 = "--layers 6 --dim 320 --heads 5 --ffn-dim 900"
BF16 = "--model small --batch-size 4 --seq-len 256 --grad-accum 2 --param-dtype bf16"
# Flags, replicate x shard, hosts. Each rank has one thread, in the forecast as in the run.
ROWS = [
    (f"{DIM_320} --batch-size 4 --seq-len 512", (1, 2), 2),
    (f"{DIM_320} --batch-size 8 --seq-len 256", (2, 2), 2),
    (f"{DIM_320} --batch-size 1 --seq-len 2048 --cp 2", (1, 1), 2),
    (f"{DIM_320} --batch-size 2 --seq-len 1024 --cp 2", (1, 2), 1),
    (BF16, (1, 2), 1),
    (BF16, (1, 2), 2),
]
STEPS, SKIPPED = 14, 4


def ranks_of(flags: str, mesh: tuple[int, int]) -> int:
    return mesh[0] * mesh[1] * (2 if "--cp 2" in flags else 1)


def cores_of(row: tuple[str, tuple[int, int], int]) -> int:
    """Cores of each host in the forecast: no more than ranks of it, whose threads they are."""
    flags, mesh, hosts = row
    return 1 if hosts > 1 else min(os.cpu_count(), ranks_of(flags, mesh))


def flags_of(row: tuple[str, tuple[int, int], int]) -> list[str]:
    flags, (replicate, shard), _ = row
    return [*flags.split(), "--dp-replicate", str(replicate), "--dp-shard", str(shard), "--wire-compression", "none"]


def forecast(row: tuple[str, tuple[int, int], int], costs: pathlib.Path) -> dict[str, float]:
    flags, mesh, hosts = row
    command = [str(WEFT), "plan", *flags_of(row), "--ranks", str(ranks_of(flags, mesh)), "--hosts", str(hosts), "--cores",
               str(cores_of(row)), "--link", "1gbit:50us", "--costs", str(costs), "--measure", "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode not in (0, 1) or not result.stdout:  # 1 with output: the mesh does not fit.
        raise SystemExit(f"weft plan has failed: {result.stderr}")
    candidate = json.loads(result.stdout)["candidates"][0]
    return {"step": candidate["step_ms"], "resident": candidate["memory"]["resident"] / 2**20}


def busy_seconds() -> float:
    """Time that all cores together were busy since the start of the machine."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def load_of_others() -> float:
    """Share of the cores that other programs use, while this one sleeps."""
    before = busy_seconds()
    time.sleep(1)
    return (busy_seconds() - before) / os.cpu_count()


def run(row: tuple[str, tuple[int, int], int], metrics: pathlib.Path, count: int = STEPS, skipped: int = SKIPPED) -> dict[str, float]:
    flags, mesh, hosts = row
    ranks = ranks_of(flags, mesh)
    train = [str(WEFT), "train", *flags_of(row), "--steps", str(count), "--metrics", str(metrics)]
    if hosts > 1:
        command = [str(ROOT / "tools/emulated_hosts.sh"), "--hosts", str(hosts), "--rate", "1gbit",
                   str(ROOT / "tools/hosts_mpirun.sh"), "-n", str(ranks), "--ppn", str(ranks // hosts), *train]
    else:
        command = [str(ROOT / "tools/mpirun.sh"), "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *train]
    metrics.unlink(missing_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "WEFT_TRANSPORT": "mpi"}  # The planner simulates links with a rendezvous protocol.
    others = load_of_others()
    subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {"step": statistics.median(step["step_ms"] for step in steps[skipped:]), "resident": steps[-1]["rss_bytes"] / 2**20,
            "others": others}


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=lambda text: [int(row) for row in text.split(",")], default=range(1, len(ROWS) + 1))
    options = parser.parse_args()
    results = {row: ([], []) for row in options.rows}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for number, (forecasts, runs) in results.items():
                forecasts.append(forecast(ROWS[number - 1], pathlib.Path(folder) / "costs.json"))
                runs.append(run(ROWS[number - 1], pathlib.Path(folder) / "metrics.jsonl"))
    print("| run | mesh | hosts | step, ms: forecast | measured | | resident, MiB: forecast | measured | others |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number, (forecasts, runs) in results.items():
        flags, mesh, hosts = ROWS[number - 1]
        steps = [[value["step"] for value in values] for values in (forecasts, runs)]
        resident = [statistics.median(value["resident"] for value in values) for values in (forecasts, runs)]
        deviation = statistics.median(a / b - 1 for a, b in zip(*steps))
        print(f"| `{flags}` | {mesh[0]} x {mesh[1]} | {hosts} | {spread(steps[0])} | {spread(steps[1])} | {deviation:+.0%} | "
              f"{resident[0]:.0f} | {resident[1]:.0f} | {max(value['others'] for value in runs):.0%} |", flush=True)


if __name__ == "__main__":
    main()
