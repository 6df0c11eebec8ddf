#!/usr/bin/env python3
"""Runs examples/slurm/train.sbatch with scripts in place of srun and of Slurm's commands."""
import os
import pathlib
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
        return subprocess.Popen([JOB, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                                start_new_session=True)

    def run_script(self, *flags):
        """(exit code, standard output, standard error)"""
        with self.start(*flags) as process:
            output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

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


if __name__ == "__main__":
    unittest.main()
