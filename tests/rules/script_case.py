"""A test case of scripts, which run in a small tree of their own. Programs of the test may take the place of others."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class ScriptCase(unittest.TestCase):
    scripts = ()  # Paths below ROOT that the small tree has copies of.

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        for script in self.scripts:
            (self.root / script).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / script, self.root / script)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def program(self, path, text):
        """A shell script. Those in bin/ are found before the programs of the system."""
        self.write(path, f"#!/usr/bin/env bash\n{text}\n").chmod(0o755)

    def environment(self, **variables):
        return os.environ | {"PATH": f"{self.root}/bin:{os.environ['PATH']}"} | variables

    def run_script(self, script, *arguments, cwd=None, **variables):
        return subprocess.run([self.root / script, *arguments], capture_output=True, text=True, cwd=cwd or self.root,
                              stdin=subprocess.DEVNULL, env=self.environment(**variables), timeout=120)
