#!/usr/bin/env python3
"""Tests of the program's processes: stop signals, ranks that are lost or bound, an output that nobody reads."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

from weft_case import SMALL, WeftCase, main

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


class RunningCase(WeftCase):
    def read_to_step(self, process, step):
        """Reads standard output until the run has done the step."""
        while not process.stdout.readline().startswith(f"step {step}/"):
            if process.poll() is not None:
                self.fail(f"the run ended by itself, by exit code {process.returncode}: {process.stderr.read()}")


class StopRequests(RunningCase):
    def start(self, *flags, step=1):
        """Starts a run that does not end by itself, and returns when it has done `step` steps."""
        (self.folder / "m.jsonl").unlink(missing_ok=True)
        command = self.command(["train", *flags, "--data", self.text, "--steps", "1000000", "--metrics", "m.jsonl",
                                "--export-hf", "out"], None)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                   env=os.environ | {"OMP_NUM_THREADS": "1"})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.read_to_step(process, step)
        return process

    def test_stops_after_a_whole_step_and_exports_nothing(self):
        for number in (signal.SIGTERM, signal.SIGUSR2):
            process = self.start(*SMALL)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, errors)
            self.assertIn("stopped by a signal", errors)
            for line in (self.folder / "m.jsonl").read_text().splitlines():
                json.loads(line)
            self.assertEqual(self.files(), ["m.config.json", "m.config.toml", "m.jsonl", "text.txt"])

    def test_ends_a_command_without_ranks(self):
        self.train("--steps", "1", "--checkpoint-dir", "ck")
        # Nobody reads the output, so the command waits when the pipe is full.
        command = self.command(["checkpoint", "verify", *["ck"] * 20000], None)
        for number in (signal.SIGTERM, signal.SIGINT):
            with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=self.folder) as process:
                self.addCleanup(process.kill)
                self.assertIn(b"ok", process.stdout.readline())
                process.send_signal(number)
                try:
                    self.assertEqual(process.wait(timeout=20), 130)
                finally:
                    process.kill()

    def size_of(self, name):
        # Set-up creates an output and removes it again, to learn if it can be written.
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).stat().st_size
        return 0

    def test_opens_streams_that_are_closed(self):
        command = self.command(["train", *SMALL, "--data", self.text, "--steps", "1000000", "--metrics", "m.jsonl"], None)
        process = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], cwd=self.folder)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while not self.size_of("m.jsonl"):
            self.assertIsNone(process.poll(), "the run ended by itself")
        self.assertEqual([os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in (0, 1, 2)], ["/dev/null"] * 3)

    def test_has_no_handlers_for_stop_signals_and_blocks_them(self):
        process = self.start(*SMALL)
        unblocked = []
        for status in pathlib.Path(f"/proc/{process.pid}/task").glob("*/status"):
            masks = dict(re.findall(r"^(Sig\w+):\t(\w+)$", status.read_text(), re.MULTILINE))
            for number in STOP_SIGNALS:
                bit = 1 << (number - 1)
                self.assertFalse(int(masks["SigCgt"], 16) & bit, f"{number.name} has a handler")
                if not int(masks["SigBlk"], 16) & bit:
                    unblocked.append(number)
        # While a thread waits in sigwaitinfo, its mask shows the signals as not blocked.
        self.assertEqual(sorted(unblocked), sorted(STOP_SIGNALS))

    def test_survives_signals_at_any_point_of_a_step(self):
        # The steps are mostly matrix products. One such run in five crashed when signals had handlers.
        flags = ["--layers", "2", "--dim", "128", "--heads", "2", "--ffn-dim", "384", "--batch-size", "4"]
        for run in range(16):
            process = self.start(*flags)
            for _ in range(run * 20000):  # Each run is stopped at another point of its step.
                pass
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, f"run {run}: {errors}")


class LostReader(RunningCase):
    def lose(self, process):
        """Reads to the first step, and then no more."""
        self.addCleanup(process.kill)
        self.read_to_step(process, 1)
        process.stdout.close()

    def start(self):
        command = self.command(["train", *SMALL, "--data", self.text, "--steps", "1000000", "--checkpoint-dir", "ck"], None)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder)

    def test_a_run_stops_and_saves_a_checkpoint(self):
        with self.start() as process:
            self.lose(process)
            errors = process.stderr.read()
        self.assertEqual(process.returncode, 1, errors)
        self.assertIn("stopped because standard output cannot be written, after step", errors)
        self.assertIn("saved ck/step-", errors)
        self.assertTrue(list(self.folder.glob("ck/step-*")))

    def test_a_signal_to_a_run_and_its_reader_stops_the_run(self):
        with self.start() as process:
            self.addCleanup(process.kill)
            process.stdout.readline()
            process.send_signal(signal.SIGSTOP)  # The signal and the end of the reader come together.
            process.send_signal(signal.SIGINT)
            process.stdout.close()
            process.send_signal(signal.SIGCONT)
            errors = process.stderr.read()
        self.assertEqual(process.returncode, 130, errors)

    def test_a_full_disk_is_an_error(self):
        self.train("--steps", "1", "--checkpoint-dir", "ck")
        commands = (["--help"], ["plan", "--ranks", "1", *SMALL], ["checkpoint", "ls", "ck"],
                    ["train", *SMALL, "--data", self.text, "--steps", "1"])
        for arguments in commands:
            with open("/dev/full", "w") as full:
                result = subprocess.run(self.command(arguments, None), stdout=full, stderr=subprocess.PIPE, text=True,
                                        cwd=self.folder, timeout=60)
            self.assertEqual(result.returncode, 1, f"{arguments}: {result.stderr}")
            self.assertIn("standard output", result.stderr)

    def test_a_launch_stops_and_saves_a_checkpoint(self):
        command = self.command(["launch", "-n", "2", "--oversubscribe", "--restart-delay", "0", "--", "train", *SMALL,
                                "--data", self.text, "--batch-size", "2", "--steps", "1000000", "--checkpoint-dir", "ck"], None)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder) as process:
            self.addCleanup(process.kill)
            self.assertIn("model", process.stdout.readline())
            process.stdout.close()
            errors = process.stderr.read()
        self.assertEqual(process.returncode, 1, errors)
        self.assertNotIn("starting attempt", errors)
        self.assertIn("nothing reads the output any more, so the run was stopped", errors)
        self.assertTrue(list(self.folder.glob("ck/step-*")), errors)

    def test_a_launch_passes_on_all_output(self):
        flags = ["-n", "1", "--", "train", *SMALL, "--data", self.text, "--steps", "300", "--checkpoint-dir", "ck"]
        with subprocess.Popen(self.command(["launch", *flags], None), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              cwd=self.folder, pipesize=4096) as process:
            self.addCleanup(process.kill)
            output = process.stdout.read()
        self.assertEqual(process.returncode, 0, output)
        self.assertEqual(re.findall(r"(?m)^step (\d+)/300 ", output), [str(step) for step in range(1, 301)])
        self.assertIn("weights xxh64:", output.splitlines()[-1])


class BoundRanks(WeftCase):
    def launch(self, *flags):
        # hwloc makes up the host. A script in the place of mpirun prints its arguments.
        self.write("bin/mpirun", "#!/bin/sh\necho \"$@\"\n")
        (self.folder / "bin/mpirun").chmod(0o755)
        environment = os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HWLOC_SYNTHETIC": "numa:2 core:4 pu:1"}
        command = self.command(["launch", "-n", "8", "--max-restarts", "0", *flags, "--", "train", *SMALL, "--data", self.text], None)
        return subprocess.run(command, capture_output=True, text=True, cwd=self.folder, env=environment, timeout=60)

    def test_a_launch_spreads_ranks_over_the_numa_nodes_of_the_host(self):
        bound = self.launch()
        self.assertIn("--map-by ppr:4:numa --bind-to numa", bound.stdout, bound.stderr)
        self.assertIn("weft launch: binds ranks to the 2 NUMA nodes of each host, 4 on each", bound.stderr)
        unbound = self.launch("--bind", "none")
        self.assertIn("--map-by slot --bind-to none", unbound.stdout, unbound.stderr)
        self.assertNotIn("binds ranks", unbound.stderr)


class LostRanks(RunningCase):
    @staticmethod
    def children(pid):
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    @staticmethod
    def end(process):
        """Ends mpirun, which ends its ranks."""
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    def lose(self, signal_number, *flags):
        """Sends a signal to rank 1 of 2 after the first step. Returns the exit code and standard error of mpirun.

        The timeout also holds for the start and the first step.
        """
        command = self.command(["train", *SMALL, "--data", self.text, "--steps", "1000000", *flags], 2)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                   env=os.environ | {"WEFT_TIMEOUT_S": "15"})
        self.addCleanup(self.end, process)
        self.read_to_step(process, 1)
        ranks = [child for child in self.children(process.pid)
                 if b"train" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes()]
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[1], signal_number)
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors

    def check_hang(self, *flags):
        code, errors = self.lose(signal.SIGSTOP, *flags)
        self.assertEqual(code, 86, errors)
        self.assertRegex(errors, r"weft: rank 0: .*waits for rank\(s\) 1.*run: weft diagnose weft-dump")
        diagnosis = self.run_weft("diagnose", "weft-dump")
        self.assertEqual(diagnosis.returncode, 0, diagnosis.stderr)
        self.assertRegex(diagnosis.stdout, r"^(rank 1 is late: .* submitted by rank 0 and not by rank 1 \(.*\)"
                                           r"|a rank was late: on rank 0, .* waits for rank\(s\) 1; .*)\n$")

    def test_names_a_rank_that_hangs_and_exits(self):
        self.check_hang()

    def test_names_a_rank_that_hangs_in_a_ring_and_exits(self):
        self.check_hang("--cp", "2", "--cp-scheme", "ring")

    def test_exits_when_a_rank_dies(self):
        code, errors = self.lose(signal.SIGKILL)
        self.assertNotEqual(code, 0, errors)


if __name__ == "__main__":
    sys.exit(main(jobs=4))
