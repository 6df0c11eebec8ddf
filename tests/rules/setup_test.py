#!/usr/bin/env python3
"""Tests which packages tools/setup.sh asks for. Scripts take the place of Debian's programs, and nothing is installed."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/setup.sh"


class Options(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        for name, line in {"dpkg-query": "", "sudo": 'exec "$@"', "apt-get": 'echo "apt-get $@"'}.items():
            path = self.folder / name
            path.write_text(f"#!/bin/sh\n{line}\n")
            path.chmod(0o755)

    def run_setup(self, *options):
        """(exit code, the packages to install, standard error)"""
        environment = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        result = subprocess.run([SCRIPT, *options], capture_output=True, text=True, env=environment, timeout=60)
        installs = [line.split() for line in result.stdout.splitlines() if line.startswith("apt-get install")]
        return result.returncode, {word for words in installs for word in words}, result.stderr

    def test_add_up(self):
        code, packages, errors = self.run_setup("--dev", "--mpich")
        self.assertEqual(code, 0, errors)
        self.assertLessEqual({"cmake", "clang-tidy-14", "libmpich-dev"}, packages)
        self.assertNotIn("slurm-wlm", packages)

    def test_may_be_left_out(self):
        code, packages, errors = self.run_setup()
        self.assertEqual(code, 0, errors)
        self.assertIn("cmake", packages)
        self.assertTrue(packages.isdisjoint({"clang-tidy-14", "libmpich-dev", "slurm-wlm"}), packages)

    def test_must_all_be_known(self):
        code, packages, errors = self.run_setup("--dev", "--mpi")
        self.assertEqual((code, packages), (1, set()))
        self.assertIn("unknown option '--mpi'", errors)


if __name__ == "__main__":
    unittest.main()
