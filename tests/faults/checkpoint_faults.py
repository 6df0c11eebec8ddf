#!/usr/bin/env python3
"""Faults around checkpoints: after each, the run goes on from the last committed checkpoint, and ends with the weights of an
undisturbed run.

    checkpoint_faults.py WEFT FAULTY_RANK SHIM MPIRUN [--sample] [--table FILE] [--list] [--resumes N] [NAME...]

Each case starts from a folder with the checkpoints of steps 4 and 8, and goes on to step 12 with a fault. Then another run goes on
without a fault. It must end with the expected weights, leave only whole checkpoints, and remove and name the remains of killed saves.
--resumes stops N runs by SIGTERM at random instants and resumes each. NAME, --sample, --list, --table and the exit code are as in
faults.py.
"""
import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

import fault_run
from checkpoint_damage import FILES, damaged, file_of_another_step, flip_a_bit, link_out_of_folder, refused, remove, truncate, wrong_array
from checkpoint_place import CHECKPOINTS, FLAGS, LONG, LONG_FLAGS, Harness, Outcome, Place, hash_of
from fault_results import Results, report_no_case

OK_AFTER_KILL = (1, 137, 9, 86, 143)


def judged(harness, place, outcome, codes, message, flags=()):
    problems = list(outcome.complaints)
    if outcome.code not in codes:
        problems.append(f"exit code {outcome.code}, expected one of {codes}")
    if not re.search(message, outcome.output):
        problems.append(f"no message like '{message}'")
    return outcome, problems + harness.recovery_problems(place, flags)


def single(ranks, codes, message, damage=None, flags=(), **case):
    """One faulty run, and one that goes on."""

    def run(harness):
        place = harness.place(ranks)
        if damage:
            damage(place)
        return judged(harness, place, place.train(flags=flags, **case), codes, message)

    return run


def interrupted(ranks, codes, message, flags=(), **case):
    """A long run that signals end, and one that goes on."""

    def run(harness):
        place = harness.long_place(ranks)
        outcome = place.train(steps=LONG, flags=[*LONG_FLAGS, *flags], **case)
        problems = list(outcome.complaints) + ([] if outcome.code in codes else [f"exit code {outcome.code}, expected one of {codes}"])
        if not re.search(message, outcome.output):
            problems.append(f"no message like '{message}'")
        remains = place.remains()
        recovered = place.train(steps=LONG, flags=LONG_FLAGS)
        if hash_of(recovered.output) != harness.long_hashes[ranks]:
            problems.append(f"the next run ends with {recovered.code} or other weights")
        problems += [f"the next run does not name {name}" for name in remains if name not in recovered.output]
        problems += [f"the next run leaves {name}" for name in place.remains()]
        return outcome, problems

    return run


def every_call(ranks, rank, what, codes, flags=(), stride=1, calls=("open", "write", "truncate", "fsync", "rename", "close"), once=""):
    """The fault at each call of each kind under the folder of checkpoints, until a run has fewer calls and ends well without a fault. A run
    has one of each kind. `once`: ":once" for a fault of that call alone, so that a later one does not hide an error that is ignored."""

    def run(harness):
        seconds, problems, done, seen = 0, [], collections.Counter(), collections.Counter()
        for call in calls:
            for number in range(1, 1000, stride):
                place = harness.place(ranks)
                outcome = place.train(flags=flags, fault=f"{what}@{call}:{number}{once}", fault_rank=rank, fault_path=f"/{CHECKPOINTS}/")
                if "is not used" in outcome.output:
                    problems.append(f"{call} {number}: the run passes over a whole checkpoint")
                if fault_run.NOT_FIRED in outcome.complaints:
                    if outcome.code != 0:
                        problems.append(f"{call} {number}: exit code {outcome.code} without a fault")
                    shutil.rmtree(place.folder.parent)
                    break
                done[call] += 1
                seen[outcome.code] += 1
                seconds = max(seconds, outcome.seconds)
                _, found = judged(harness, place, outcome, codes, "")
                problems += [f"{call} {number}: {problem}" for problem in found]
                shutil.rmtree(place.folder.parent)
        problems += [f"no run had the fault at a call of {call}" for call in calls if done[call] == 0]
        codes_seen = ", ".join(f"{count} x exit {code}" for code, count in sorted(seen.items()))
        return Outcome(f"{codes_seen}", f"weft: {done.total()} runs, each went on to the same weights", seconds, []), problems

    return run


def unlink_latest(place):
    (place.folder / CHECKPOINTS / "latest").unlink()


def other_model(harness):
    place = harness.place(1)
    outcome = place.train(flags=["--dim", "48", "--heads", "3"])
    return judged(harness, place, outcome, (2,), r"--model is .*but the checkpoint has")


def onto_other_ranks(harness):
    """4 -> 2 -> 3 -> 1 -> 2 x 2 -> 2 with sequences split; each adds two steps."""
    problems, losses, seconds = [], [], 0
    folder = pathlib.Path(tempfile.mkdtemp(dir=harness.parent.name)) / "run"
    folder.mkdir()
    place = Place(harness.programs, folder, 1)
    meshes = [(4, []), (2, ["--zero-copy", "false"]), (3, []), (1, []), (4, ["--dp-replicate", "2", "--dp-shard", "2"]),
              (2, ["--cp", "2"])]
    for number, (ranks, mesh) in enumerate(meshes):
        outcome = place.train(steps=2 * (number + 1), flags=["--batch-size", "12", *mesh], ranks=ranks)
        seconds = max(seconds, outcome.seconds)
        problems += outcome.complaints + ([] if outcome.code == 0 else [f"{ranks} ranks: exit code {outcome.code}"])
        losses += [float(value) for value in re.findall(r"^step \d+/\d+  loss (\S+)", outcome.output, re.MULTILINE)]
    shutil.rmtree(folder / CHECKPOINTS)
    whole = place.train(steps=2 * len(meshes), flags=["--batch-size", "12"], ranks=1)
    expected = [float(value) for value in re.findall(r"^step \d+/\d+  loss (\S+)", whole.output, re.MULTILINE)]
    if len(losses) != len(expected) or any(abs(a / b - 1) > 2e-4 for a, b in zip(losses, expected)):  # Four digits are printed.
        problems.append(f"losses {losses}, expected {expected}")
    return Outcome(0, f"weft: {len(meshes)} meshes, losses of one rank", seconds, []), problems


def two_runs(harness):
    place = harness.place(1)
    first = subprocess.Popen([harness.programs["weft"], "train", *fault_run.MODEL, "--data", "text.txt", *FLAGS, "--steps", "1000000"],
                             cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env=os.environ | {"OMP_NUM_THREADS": "1"})
    watchdog = threading.Timer(fault_run.CASE_TIMEOUT_S, first.kill)
    watchdog.start()
    try:
        if not any("step 9/" in line for line in iter(first.stdout.readline, "")):
            return Outcome(first.wait(timeout=60), "", 0, []), ["the first run ends before step 9"]
        second = place.train(steps=1000000)
        first.send_signal(signal.SIGTERM)
        rest, _ = first.communicate(timeout=60)
    finally:
        watchdog.cancel()
        first.kill()
        first.wait()
    problems = [] if second.code == 2 else [f"exit code {second.code}, expected 2"]
    if "another run" not in second.output:
        problems.append("no message like 'another run'")
    if first.returncode != 130 or "--resume auto" not in rest:
        problems.append(f"the first run ends with {first.returncode}")
    return second, problems


def full_disk(size, codes, message):
    """The folder of checkpoints on a small file system."""

    def run(harness):
        place = harness.place(1)
        folder = place.folder / CHECKPOINTS
        backup = place.folder / "backup"
        folder.rename(backup)
        folder.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False).returncode != 0:
            return Outcome(fault_run.SKIPPED, fault_run.CANNOT_MOUNT, 0, []), []
        try:
            shutil.copytree(backup, folder, dirs_exist_ok=True)
            outcome = place.train(flags=["--keep-checkpoints", "0", "--checkpoint-interval", "1"])
            problems = [] if outcome.code in codes else [f"exit code {outcome.code}, expected one of {codes}"]
            if not re.search(message, outcome.output):
                problems.append(f"no message like '{message}'")
            subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
            return outcome, problems + harness.recovery_problems(place)
        finally:
            subprocess.run(["umount", folder], check=False)

    return run


def read_only(harness):
    """The folder of checkpoints on a read-only file system."""
    place = harness.place(1)
    folder = place.folder / CHECKPOINTS
    if subprocess.run(["mount", "--bind", folder, folder], check=False).returncode != 0:
        return Outcome(fault_run.SKIPPED, fault_run.CANNOT_MOUNT, 0, []), []
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        outcome = place.train()
    finally:
        subprocess.run(["umount", folder], check=False)
    return judged(harness, place, outcome, (3,), "Read-only file system")


def flipped_weight(harness):
    """A bit of one rank's weights flips in its memory. With --lr 0 the weights stay those of the checkpoint."""
    ranks = 2
    folder = pathlib.Path(tempfile.mkdtemp(dir=harness.parent.name)) / "run"
    folder.mkdir()
    fault_run.write_text(folder)
    flags = [*fault_run.MODEL, "--data", "text.txt", "--batch-size", "2", "--lr", "0", "--weight-decay", "0", "--dp-replicate", "2",
             "--checkpoint-dir", CHECKPOINTS, "--check-replicas", "1", "--node-shared", "off"]
    place = Place(harness.programs, folder, ranks)
    case = fault_run.Case("", (), "", [])
    run = fault_run.Run(case, harness.programs, folder)
    output = open(run.output, "wb")
    process = subprocess.Popen([harness.programs["mpirun"], "-n", str(ranks), harness.programs["weft"], "train", *flags, "--steps", "1000000"],
                               cwd=folder, env=run.environment(), stdout=output, stderr=subprocess.STDOUT)
    start = time.monotonic()
    end = start + fault_run.CASE_TIMEOUT_S

    def printed(text):
        return fault_run.wait_until(lambda: text in run.output.read_text(errors="replace"), process, end)

    pids = fault_run.rank_processes(run.tag) if printed("step 1/") else {}
    run.kill(pids.get(0), signal.SIGUSR1)
    if not pids or not printed("saved ck/step-"):
        process.kill()
        process.wait()
        output.close()
        for pid in fault_run.left_processes(run.tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return Outcome(None, run.output.read_text(errors="replace"), time.monotonic() - start, []), ["no step, or no save"]
    saved = next((folder / CHECKPOINTS).glob("step-*"))
    content = (saved / "model.safetensors").read_bytes()
    header = struct.unpack("<Q", content[:8])[0]
    offsets = json.loads(content[8:8 + header])["model.embed_tokens.weight"]["data_offsets"]
    pattern = content[8 + header + offsets[0]:][:256]
    places = flip_in_memory(pids[1], pattern)
    try:
        code = process.wait(timeout=max(0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        code = None
    output.close()
    text = run.output.read_text(errors="replace")
    problems = [] if code == 1 else [f"exit code {code}, expected 1"]
    if places == 0:
        problems.append("the weights were not found in memory")
    if not re.search(r"replicas differ in 'model.embed_tokens.weight': ranks 0, 1 hold different weights", text):
        problems.append("no message that names the ranks")
    if place.checkpoint("verify", CHECKPOINTS).returncode != 0:
        problems.append("the checkpoint is damaged")
    return Outcome(code, text, time.monotonic() - start, []), problems


def flip_in_memory(pid, pattern):
    """Flips one bit of each place that has the pattern in the writable memory of a process."""
    found = 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, mode, *_ = line.split()
            begin, end = (int(part, 16) for part in span.split("-"))
            if not mode.startswith("rw"):
                continue
            try:
                memory.seek(begin)
                content = memory.read(min(end - begin, 64 << 20))  # Node memory is large, and empty but for its front.
            except (OSError, ValueError):
                continue
            at = content.find(pattern)
            while at >= 0:
                memory.seek(begin + at)
                try:
                    memory.write(bytes([pattern[0] ^ 4]))
                    found += 1
                except OSError:  # The process has returned this memory meanwhile.
                    break
                at = content.find(pattern, at + 1)
    return found


def cases():
    """(name, in the sample, function) of each. The function returns (outcome for the table, list of problems)."""
    killed = OK_AFTER_KILL
    save = {"fault_path": f"/{CHECKPOINTS}/"}
    yield "no fault", True, single(2, (0,), "resume   ck/step-00000008, after step 8")
    for save_kind in ("a sync", "an async"):
        flags = ["--checkpoint-async", "true"] if save_kind == "an async" else []
        yield (f"kill -9 at every call of {save_kind} save, one rank", False, every_call(1, 0, "kill", (137, -9), flags))
        yield (f"kill -9 of rank 0 at calls of {save_kind} save", False, every_call(2, 0, "kill", killed, flags, stride=3))
        calls = ("open", "write", "fsync", "close")  # Rank 0 alone makes the size of files, and commits the checkpoint.
        yield (f"kill -9 of rank 1 at calls of {save_kind} save", False, every_call(2, 1, "kill", killed, flags, stride=3, calls=calls))
    yield "kill -9 of rank 1 in a save", True, single(2, killed, "", fault="kill@write:1", fault_rank=1, **save)
    yield "kill -9 of rank 1 between saves", False, single(2, killed, "", send=(10, signal.SIGKILL, "rank 1"))
    yield "kill -9 of rank 1 in resume", False, single(2, killed, "", fault="kill@read:3", fault_rank=1, **save)
    for code in ("ENOSPC", "EIO"):
        exits = (1,) if code == "ENOSPC" else (3,)
        calls = ("write", "truncate", "fsync", "rename")
        yield (f"{code} at every call of a save, one rank", False, every_call(1, 0, code, exits, calls=calls, once=":once"))
        yield (f"{code} on rank 1", False, single(2, exits, "ck/", fault=f"{code}@write:1", fault_rank=1, **save))
    yield "EIO at every tenth read of a resume, one rank", False, every_call(1, 0, "EIO", (3,), stride=10, calls=("read",))
    yield ("EIO once, at every tenth read of a resume, one rank", False,
           every_call(1, 0, "EIO", (3,), stride=10, calls=("read",), once=":once"))
    yield "short writes", False, single(2, (0,), "saved ck/step-00000012", fault="short@write", fault_rank=1, **save)
    yield "the device hangs in a flush", False, single(2, (86,), "rank|device", fault="hang@fsync:1", fault_rank=1, **save)
    yield "the device hangs in a flush of an async save", False, single(
        2, (86,), "rank|device", flags=["--checkpoint-async", "true"], fault="hang@fsync:1", fault_rank=1, **save)
    yield "200 flipped bits", False, damaged(flip_a_bit, r"ck/step-00000008", 200)
    yield "a flipped bit", True, damaged(flip_a_bit, r"ck/step-00000008")
    yield "every file cut at every boundary", False, damaged(truncate, r"ck/step-00000008", 40)
    yield "a missing file", False, damaged(remove, r"ck/step-00000008", len(FILES))
    yield "a file of another step", False, damaged(file_of_another_step, "model.safetensors")
    yield "a link out of the folder", False, refused(link_out_of_folder, "which may be whole")
    yield "latest is missing", False, single(1, (0,), "after step 8", damage=unlink_latest)
    yield "a run of another model", False, other_model
    yield "an array of another shape", False, wrong_array([4, 8], None, "shape")
    yield "an array of another dtype", False, wrong_array(None, "I32", "I32")
    yield "checkpoints of other meshes", False, onto_other_ranks
    yield "two runs in one folder", True, two_runs
    yield "a full disk at the start", False, full_disk("1000k", (1,), "bytes, but only")
    yield "a full disk in mid-run", False, full_disk("2400k", (1,), r"saved ck/step-00000009[\s\S]*bytes, but only")
    yield "a read-only file system", False, read_only
    yield "a bit of one replica's weights flips", False, flipped_weight
    saved = r"saved ck/step-\d+; to go on, run the same command with --resume auto"
    yield "SIGTERM saves", True, interrupted(2, (130,), saved, send=(210, signal.SIGTERM, "ranks"))
    yield "SIGUSR1 saves", False, interrupted(2, (0,), r"saved ck/step-000002[1-9]", send=(210, signal.SIGUSR1, "rank 1"))
    yield "Ctrl-C in a save", False, interrupted(2, (130,), saved, send=(199, signal.SIGINT, "ranks"), fault="slow@fsync:1", seconds=1,
                                                  **save)
    yield "Ctrl-C twice in a save", False, interrupted(2, (130, 137), "", send=(199, (signal.SIGINT, signal.SIGINT), "ranks"),
                                                        fault="slow@fsync:1", seconds=3, **save)


def resume_after_stops(count, programs):
    """Stops runs at random instants until they end by themselves. Exit code 0 if all end with the same weights."""
    harness = Harness(programs)
    draw = random.Random(count)
    codes, hashes = collections.Counter(), collections.Counter()
    for _ in range(count):
        place = harness.long_place(2)
        stopped = place.train(steps=LONG, flags=LONG_FLAGS, launch=fault_run.ONCE, stop_after=draw.uniform(0, 3))
        codes[stopped.code] += 1
        done = place.train(steps=LONG, flags=LONG_FLAGS)
        hashes[hash_of(done.output)] += 1
        if done.code != 0 or stopped.complaints or done.complaints:
            print(f"exit {stopped.code}, then {done.code}: {stopped.complaints} {done.output.splitlines()[-3:]}", flush=True)
        shutil.rmtree(place.folder.parent)
    print(f"{count} runs stopped by SIGTERM: " + ", ".join(f"{number} exited with {code}" for code, number in sorted(codes.items())))
    print(f"{len(hashes)} hash of the resumed runs: " + ", ".join(f"{number} x {value}" for value, number in hashes.items()))
    return 0 if set(hashes) == {harness.long_hashes[2]} else 1


def main(cases=cases, description=__doc__):
    """Runs the cases that the command line chooses. The scripts of other faults around checkpoints call it as well."""
    fault_run.reset_signals()
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("weft", "faulty_rank", "shim", "mpirun"):
        parser.add_argument(name, type=os.path.abspath)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table")
    parser.add_argument("--resumes", type=int, metavar="N")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_intermixed_args()
    if arguments.resumes:
        return resume_after_stops(arguments.resumes, vars(arguments))
    chosen = [case for case in cases()
              if (case[1] or not arguments.sample) and (not arguments.names or any(name in case[0] for name in arguments.names))]
    if not chosen:
        return report_no_case(arguments.names)
    if arguments.list:
        print("\n".join(name for name, _, _ in chosen))
        return 0
    harness = Harness(vars(arguments))
    report = Results()
    for name, _, run in chosen:
        outcome, problems = run(harness)
        report.add(name, outcome.code, outcome.seconds, outcome.output, problems)
    return report.finish(arguments.table)


if __name__ == "__main__":
    sys.exit(main())
