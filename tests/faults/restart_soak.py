#!/usr/bin/env python3
"""Kills a random rank of a run under `weft launch` every 20 to 40 seconds, and compares its weights with an undisturbed run's.

    restart_soak.py WEFT [--steps N] [--ranks N] [--pause LOW HIGH] [--folder DIR]

The run saves checkpoints asynchronously and restarts from the last one. Both runs go on side by side. Prints the number of kills and
restarts, and both hashes. Exit code: 0 if they are equal, there was a restart, and nothing is left of the run.
"""
import argparse
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import fault_run


def command(weft, ranks, restarts, steps, checkpoints):
    train = ["train", "--steps", str(steps), "--batch-size", str(ranks), "--checkpoint-interval", "100", "--checkpoint-async", "true",
             "--checkpoint-dir", str(checkpoints), "--resume", "auto"]
    return [weft, "launch", "-n", str(ranks), "--oversubscribe", "--max-restarts", str(restarts), "--restart-delay", "1", "--", *train]


def start(words, output, tag):
    environment = os.environ | {fault_run.TAG: tag, "OMP_NUM_THREADS": "1", "WEFT_TIMEOUT_S": "20"}
    return subprocess.Popen(words, stdout=open(output, "wb"), stderr=subprocess.STDOUT, env=environment)


def hash_in(output):
    found = re.findall(r"weights xxh64:([0-9a-f]{16})", output.read_text(errors="replace"))
    return found[-1] if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weft", type=os.path.abspath)
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pause", type=float, nargs=2, default=(20, 40))
    parser.add_argument("--folder", type=pathlib.Path)
    arguments = parser.parse_args()
    folder = arguments.folder or pathlib.Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    memory = fault_run.shared_memory()
    tag, undisturbed_tag = uuid.uuid4().hex, uuid.uuid4().hex
    begin = time.monotonic()
    undisturbed = start(command(arguments.weft, arguments.ranks, 0, arguments.steps, folder / "undisturbed"), folder / "undisturbed.txt",
                        undisturbed_tag)
    disturbed = start(command(arguments.weft, arguments.ranks, 1000, arguments.steps, folder / "disturbed"), folder / "disturbed.txt", tag)
    draw, kills = random.Random(1), 0
    next_kill = time.monotonic() + draw.uniform(*arguments.pause)
    while disturbed.poll() is None:
        time.sleep(0.2)
        ranks = fault_run.rank_processes(tag)
        if time.monotonic() < next_kill or not ranks:
            continue
        fault_run.Run.kill(draw.choice(sorted(ranks.values())), signal.SIGKILL)
        kills += 1
        next_kill = time.monotonic() + draw.uniform(*arguments.pause)
    seconds = time.monotonic() - begin
    undisturbed.wait()
    output = folder / "disturbed.txt"
    restarts = len(re.findall(r"starting attempt", output.read_text(errors="replace")))
    hashes = hash_in(folder / "undisturbed.txt"), hash_in(output)
    print(f"{kills} kills in {seconds:.0f} s, {restarts} restarts, exit codes {undisturbed.returncode} and {disturbed.returncode}")
    print(f"weights: undisturbed {hashes[0]}, disturbed {hashes[1]}")
    left = [path.name for path in fault_run.shared_memory() - memory if not fault_run.is_mapped(path)]
    remains = [path.name for path in (folder / "disturbed").iterdir() if path.name.startswith(".")]
    left += remains + fault_run.left_processes(tag) + fault_run.left_processes(undisturbed_tag)
    print(f"left: {left}")
    return 0 if hashes[0] and hashes[0] == hashes[1] and restarts > 0 and not left else 1


if __name__ == "__main__":
    sys.exit(main())
