#!/usr/bin/env python3
"""Faults under weft launch: the run ends with the weights of an undisturbed run or with the documented exit code, and nothing is
left of it.

    launch_faults.py WEFT FAULTY_RANK SHIM MPIRUN [--sample] [--table FILE] [--list] [NAME...]

NAME, --sample, --list, --table and the exit code are as in faults.py.
"""
import fcntl
import os
import pathlib
import random
import re
import signal
import sys
import time

import checkpoint_faults
import fault_run
from checkpoint_place import CHECKPOINTS, LONG, Outcome, hash_of

FLAGS = ["--batch-size", "2", "--checkpoint-dir", CHECKPOINTS, "--checkpoint-interval", "100"]
RANKS = 2


class LaunchRun(fault_run.Run):
    """A launch, and a function that disturbs it."""

    def __init__(self, place, disturb, case):
        super().__init__(case, place.programs, place.folder)
        self.disturb = disturb
        self.process = None

    def deliver(self, process):
        self.process = process
        self.disturb(self)

    def attempt_output(self, attempt):
        """The output of the attempt so far; empty before its start."""
        parts = self.output.read_text(errors="replace").split("starting attempt")
        return parts[attempt - 1] if attempt <= len(parts) else ""

    def wait_for(self, done, attempt):
        fault_run.wait_until(lambda: done(self.attempt_output(attempt)), self.process, self.end)

    def wait_for_step(self, step, attempt=1):
        """Waits until the attempt has done this step, or a later one."""
        self.wait_for(lambda text: any(int(found) >= step for found in re.findall(r"^step (\d+)/", text, re.MULTILINE)), attempt)

    def send(self, number):
        self.kill(self.process.pid, number)

    def kill_rank(self, rank, number=signal.SIGKILL):
        self.kill(fault_run.rank_processes(self.tag).get(rank), number)

    def commands(self):
        """The command lines of the children of mpirun."""
        found = []
        for mpirun in self.children(self.process.pid):
            for child in self.children(mpirun):
                try:
                    found.append(pathlib.Path(f"/proc/{child}/cmdline").read_bytes())
                except OSError:
                    pass  # It has ended.
        return found

    def kill_mpirun(self):
        self.kill(self.children(self.process.pid)[0], signal.SIGKILL)

    @staticmethod
    def children(pid):
        try:
            return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []  # The process has ended.


def launched(disturb, code, message, launch=("--restart-delay", "0"), flags=(), **case):
    """A case: runs a launch, disturbs it, and lets an undisturbed run go on if the launch has not finished."""

    def run(harness):
        place = harness.long_place(RANKS)
        launch_run = LaunchRun(place, disturb, fault_run.Case("", (code,), message, ["--steps", str(LONG), *FLAGS, *flags], ranks=RANKS,
                                                              launch=launch, **case))
        seen, seconds, output, complaints = launch_run.execute()
        problems = [complaint for complaint in complaints if not complaint.startswith("a file is left")]
        problems += fault_run.judge(launch_run.case, seen, output, [])
        final = output if code == 0 else place.train(steps=LONG, flags=["--checkpoint-interval", "100"]).output
        if hash_of(final) != harness.long_hashes[RANKS]:
            problems.append("other weights than those of an undisturbed run")
        return Outcome(seen, output, seconds, []), problems

    return run


def kill_ranks(*steps):
    """Kills a random rank in each attempt, after these steps."""
    draw = random.Random(len(steps))

    def disturb(run):
        for attempt, step in enumerate(steps, start=1):
            run.wait_for_step(step, attempt)
            run.kill_rank(draw.randrange(RANKS))

    return disturb


def at_step(step, act):
    def disturb(run):
        run.wait_for_step(step)
        act(run)

    return disturb


def twice(number):
    def act(run):
        run.send(number)
        time.sleep(0.1)  # Two signals of a kind that wait at the same time become one.
        run.send(number)

    return act


def stop_before_second_attempt(run):
    run.wait_for_step(150)
    run.kill_rank(1)
    run.wait_for(lambda text: "left after it" in text, attempt=2)
    run.send(signal.SIGTERM)


def hold_checkpoints(run):
    """Locks the folder of checkpoints between two attempts, as a rank does that has not ended yet, until the second one waits for it."""
    run.wait_for_step(150)
    run.kill_rank(1)
    run.wait_for(lambda text: "left after it" in text, attempt=2)
    folder = os.open(run.folder / CHECKPOINTS, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    run.wait_for(lambda text: "waiting  for a rank of an earlier attempt" in text, attempt=2)
    os.close(folder)


def stop_while_silent(run):
    """Sends SIGTERM once mpirun waits for a host."""
    fault_run.wait_until(lambda: any(b"orted" in command for command in run.commands()), run.process, run.end)
    run.send(signal.SIGTERM)


def cut_link(seconds, launch, codes, message, finishes):
    """The link between two hosts is cut. cut_link.sh prints what is left on them."""
    steps = 300

    def run(harness):
        place = harness.long_place(RANKS)
        flags = ["--steps", str(steps), *FLAGS]
        case = fault_run.Case("", codes, message, flags, ranks=RANKS, launch=launch, cut=seconds)
        code, duration, output, complaints = fault_run.Run(case, place.programs, place.folder).execute()
        problems = [complaint for complaint in complaints if not complaint.startswith("a file is left")]
        problems += fault_run.judge(case, code, output, [])
        if code != fault_run.SKIPPED and finishes:
            undisturbed = harness.long_place(RANKS).train(steps=steps)
            if undisturbed.code != 0:
                problems.append(f"the undisturbed run ends with {undisturbed.code}: {fault_run.message_of(undisturbed.output)}")
            elif hash_of(output) != hash_of(undisturbed.output):
                problems.append("other weights than those of an undisturbed run")
        return Outcome(code, output, duration, []), problems

    return run


def cases():
    finished = r"weft launch: finished in attempt {} of 4"
    save = {"fault": "slow@fsync:1", "seconds": 3, "fault_path": f"/{CHECKPOINTS}/"}
    for what in ("false", "true"):
        yield (f"kill -9 of a random rank in three attempts, --checkpoint-async {what}", what == "true",
               launched(kill_ranks(250, 550, 850), 0, finished.format(4), flags=["--checkpoint-async", what]))
    yield "kill -9 of a rank before the first save", False, launched(kill_ranks(20), 0, finished.format(2))
    yield "kill -9 of mpirun", False, launched(at_step(250, LaunchRun.kill_mpirun), 0, finished.format(2))
    yield ("a rank is stopped", False,
           launched(at_step(250, lambda run: run.kill_rank(1, signal.SIGSTOP)), 0, r"exit code 86 [\s\S]*" + finished.format(2)))
    yield ("kill -9 of a rank in every attempt", False,
           launched(kill_ranks(150, 250), 137, r"killed by SIGKILL\): giving up after 1 restart",
                    launch=("--max-restarts", "1", "--restart-delay", "0")))
    saved = r"saved ck/step-\d+; to go on, run the same command with --resume auto:\n  weft launch .*-- train .*--resume auto"
    yield "Ctrl-C under weft launch", False, launched(at_step(150, lambda run: run.send(signal.SIGINT)), 130, saved)
    yield "SIGTERM under weft launch", False, launched(at_step(150, lambda run: run.send(signal.SIGTERM)), 130, saved)
    yield "SIGHUP under weft launch", False, launched(at_step(150, lambda run: run.send(signal.SIGHUP)), 130, saved)
    yield "Ctrl-C twice under weft launch, in a save", True, launched(at_step(99, twice(signal.SIGINT)), 130, "", **save)
    yield ("SIGTERM before the next attempt", False,
           launched(stop_before_second_attempt, 130, "stopped by a signal before attempt 2", launch=("--restart-delay", "1000")))
    yield ("a rank of the last attempt still has the checkpoints", False,
           launched(hold_checkpoints, 0, finished.format(2), launch=("--restart-delay", "3")))
    silent = ("--host", "far:2", "--mca", "plm_rsh_agent", str(pathlib.Path(__file__).with_name("silent_host.sh").resolve()))
    yield ("a host does not answer", False,
           launched(lambda run: None, 86, r"far did not answer mpirun within 12s: check that ssh [\s\S]*: not restarting", launch=silent))
    yield "SIGTERM while a host does not answer", True, launched(stop_while_silent, 130, "", launch=silent)
    # The ranks run for longer than their start may take. Many saves keep them busy until then.
    yield ("SIGTERM under weft launch, with ranks on other hosts only", False,
           launched(lambda run: None, 130, saved, launch=fault_run.ONCE, flags=("--checkpoint-interval", "2"), startup_s=8, stop_remote="9"))
    yield ("SIGUSR1 under weft launch", False,
           launched(at_step(210, lambda run: run.send(signal.SIGUSR1)), 0, r"saved ck/step-00000(?!\d00)\d+"))
    yield ("the link is cut for good under weft launch", False,
           cut_link("ever", ("--max-restarts", "1", "--restart-delay", "0"), (1, 86, 213), "giving up after 1 restart", False))
    yield ("the link is cut for 20 s under weft launch", False,
           cut_link("20", ("--max-restarts", "9", "--restart-delay", "5"), (0,), r"finished in attempt \d", True))


if __name__ == "__main__":
    sys.exit(checkpoint_faults.main(cases, __doc__))
