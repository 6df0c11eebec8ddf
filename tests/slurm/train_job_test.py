#!/usr/bin/env python3
"""Submits examples/slurm/train.sbatch to the Slurm of with_slurm.sh. The job is stopped, goes back to the queue and finishes with
the weights of an undisturbed run.

    with_slurm.sh train_job_test.py WEFT
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
import unittest

JOB = pathlib.Path(__file__).resolve().parents[2] / "examples/slurm/train.sbatch"
MODEL = ["--layers", "2", "--dim", "16", "--heads", "2", "--ffn-dim", "24", "--seq-len", "16", "--batch-size", "4",
         "--lr-schedule", "constant"]
RANKS = 2
STEPS_AFTER_SAVE = 20
NEVER = 1_000_000_000  # A number of steps that no attempt reaches.


def slurm(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


class TrainJob(unittest.TestCase):
    weft = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.log = self.folder / "log"
        text = self.folder / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
        self.flags = [*MODEL, "--data", str(text)]
        # Each attempt reads its number of steps when it begins: the last value of a flag counts.
        self.steps = self.folder / "steps"
        self.program = self.folder / "weft"
        self.program.write_text(f'#!/bin/sh\nexec {shlex.quote(self.weft)} "$@" --steps "$(cat {self.steps})"\n')
        self.program.chmod(0o755)

    def submit(self, start, checkpoints, *options):
        """Submits a job and returns its number."""
        environment = os.environ | {"WEFT": str(self.program), "WEFT_START": start, "OMP_NUM_THREADS": "1"}
        command = ["sbatch", "--parsable", "--nodes=1", f"--ntasks-per-node={RANKS}", f"--output={self.log}", *options, str(JOB), *self.flags,
                   "--checkpoint-dir", str(checkpoints)]
        job = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=60).stdout.strip()
        self.addCleanup(lambda: subprocess.run(["scancel", "--signal=KILL", "--full", job], capture_output=True, timeout=60))
        return job

    def wait_for(self, what, done, seconds=300):
        deadline = time.monotonic() + seconds
        while not (found := done()):
            self.assertLess(time.monotonic(), deadline, f"no {what}; the log is:\n{self.text()}")
            time.sleep(0.1)
        return found

    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    def state(self, job):
        return re.search(r"JobState=(\w+)", slurm("scontrol", "show", "job", job)).group(1)

    def saved_step(self, attempt):
        """The step of the checkpoint that the attempt has saved, when the job is back in the queue."""
        pattern = r"stopped by a signal after step (\d+)(?:.*\n)*?train\.sbatch: saved; job \d+ goes back to the queue"
        return int(self.wait_for("requeued job", lambda: re.findall(pattern, self.text())[attempt:])[0])

    def hash_of(self, job):
        self.wait_for("end of the job", lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"))
        self.assertEqual(self.state(job), "COMPLETED", self.text())
        self.assertRegex(self.text(), rf"(?m)^mesh .* shard {RANKS} ")
        return re.findall(r"weights (xxh64:\w+)", self.text())[-1]

    def wait_for_training(self):
        self.wait_for("step", lambda: re.search(r"^step \d+/", self.text(), re.MULTILINE))

    def finish(self, job, start):
        """Lets the next attempt finish, and compares its weights with those of a job that nothing has disturbed."""
        self.steps.write_text(str(self.saved_step(0) + STEPS_AFTER_SAVE))
        found = self.hash_of(job)
        self.assertIn("resume   ", self.text())
        self.log.unlink()
        undisturbed = self.submit(start, self.folder / "undisturbed")
        self.assertEqual(self.hash_of(undisturbed), found)

    def check_time_limit(self, start):
        self.steps.write_text(str(NEVER))
        self.finish(self.submit(start, self.folder / "checkpoints", "--time=1", "--signal=B:USR1@30"), start)

    def test_goes_on_after_its_time_limit_under_srun(self):
        self.check_time_limit("srun")

    def test_goes_on_after_its_time_limit_under_weft_launch(self):
        self.check_time_limit("mpirun")

    def test_waits_while_its_node_is_drained(self):
        self.steps.write_text(str(NEVER))
        job = self.submit("srun", self.folder / "checkpoints")
        self.wait_for_training()
        node = slurm("sinfo", "--noheader", "--format=%n")
        slurm("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
        slurm("scancel", "--signal=USR1", "--batch", job)
        self.saved_step(0)
        self.wait_for("job that waits for the node", lambda: "DRAINED" in slurm("squeue", "--noheader", "--format=%r", f"--jobs={job}"))
        slurm("scontrol", "update", f"nodename={node}", "state=resume")
        self.finish(job, "srun")


if __name__ == "__main__":
    TrainJob.weft = str(pathlib.Path(sys.argv[1]).resolve())
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
