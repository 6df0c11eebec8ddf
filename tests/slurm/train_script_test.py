#!/usr/bin/env python3
"""Runs examples/slurm/train.sbatch with scripts in place of srun and of Slurm's commands."""
import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

JOB = pathlib.Path(__file__).resolve().parents[2] / "examples/slurm/train.sbatch"


class TrainScript(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.program("srun", 'echo "$@"')

    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/bash\ncd {self.folder}\n{text}\n")
        path.chmod(0o755)

    def start(self, *flags):
        """Starts the script, which leads a group of processes of its own."""
        environment = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        for name in ("WEFT", "WEFT_START"):
            environment.pop(name, None)
        process = subprocess.Popen([JOB, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                                   start_new_session=True)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def run_script(self, *flags):
        """(exit code, standard output, standard error)"""
        process = self.start(*flags)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def test_leaves_the_number_of_ranks_to_nodes_and_tasks_per_node(self):
        """Slurm would prefer a number of tasks in the script to the product of both."""
        options = [line for line in JOB.read_text().splitlines() if line.startswith("#SBATCH --n")]
        self.assertEqual(options, ["#SBATCH --nodes=1", "#SBATCH --ntasks-per-node=4"])

    def test_goes_on_from_the_newest_checkpoint_in_its_folder(self):
        code, output, errors = self.run_script("--checkpoint-dir", "ck")
        self.assertEqual(code, 0, errors)
        self.assertTrue(output.endswith("weft train --checkpoint-dir ck --resume auto\n"), output)

    def test_refuses_another_checkpoint_and_names_the_remedy(self):
        for flags in (["--resume", "ck/step-00000004"], ["--resume=ck/step-00000004"]):
            code, output, errors = self.run_script("--checkpoint-dir", "ck", *flags)
            self.assertEqual((code, output), (2, ""), errors)
            self.assertIn("leave out --resume", errors)
            self.assertIn("copy its folder into a new --checkpoint-dir", errors)

    def test_requeues_a_run_that_ends_before_the_command_that_signals_it(self):
        self.program("srun", "echo $$ >number; echo started; until [[ -e signal ]]; do sleep 0.01; done; exit 130")
        self.program("scancel", "touch signal; while [[ -e /proc/$(<number) ]]; do sleep 0.01; done")
        self.program("scontrol", 'echo "scontrol $@"')
        process = self.start("--checkpoint-dir", "ck")
        self.assertEqual(process.stdout.readline(), "started\n")
        process.send_signal(signal.SIGUSR1)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        self.assertTrue(output.endswith("scontrol requeue 7\n"), output)

    def test_ends_with_the_exit_code_of_the_run(self):
        for code in (0, 3, 130):
            self.program("srun", f"exit {code}")
            self.assertEqual(self.run_script("--checkpoint-dir", "ck")[0], code)


if __name__ == "__main__":
    unittest.main()
