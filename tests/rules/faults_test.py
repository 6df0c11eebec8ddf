#!/usr/bin/env python3
"""Tests how tools/faults.sh chooses cases by their names. No case runs."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Names(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        (self.root / "tools").mkdir()
        shutil.copy(ROOT / "tools/faults.sh", self.root / "tools")
        (self.root / "tests").symlink_to(ROOT / "tests")
        # The build does nothing.
        cmake = self.root / "bin/cmake"
        cmake.parent.mkdir()
        cmake.write_text("#!/bin/sh\n")
        cmake.chmod(0o755)

    def faults(self, *arguments):
        environment = os.environ | {"PATH": f"{self.root}/bin:{os.environ['PATH']}"}
        result = subprocess.run([self.root / "tools/faults.sh", *arguments], capture_output=True, text=True, env=environment, timeout=60)
        return result.returncode, result.stdout.splitlines()

    def test_may_belong_to_one_kind_only(self):
        for name in ("while another is stopped", "SIGTERM saves", "Ctrl-C under weft launch"):
            code, names = self.faults("--list", name)
            self.assertEqual(code, 0)
            self.assertTrue(names)
            self.assertTrue(all(name in found for found in names), names)

    def test_must_belong_to_a_case(self):
        self.assertEqual(self.faults("--list", "no such fault"), (5, []))
        self.assertEqual(self.faults("no such fault"), (5, []))
        self.assertEqual(self.faults("ranks", "--list", "SIGTERM saves"), (5, []))


if __name__ == "__main__":
    unittest.main()
