#!/usr/bin/env python3
"""Tests of tools/python_venv.sh and tests/python/run.sh: a package that does not work is never skipped, nor an older one tested."""
import sys
import unittest

from script_case import ScriptCase


class RunsPython(ScriptCase):
    scripts = ("tests/python/run.sh",)

    def setUp(self):
        super().setUp()
        self.program("venv/bin/python", f'exec env PYTHONPATH="{self.root}/packages" {sys.executable} -S "$@"')
        self.write("program.py", "print('ran')")

    def run_program(self):
        result = self.run_script("tests/python/run.sh", self.root / "venv", "--program", "program.py")
        return result.returncode, result.stdout, result.stderr

    def test_with_the_package(self):
        self.write("packages/weft/__init__.py", "")
        self.assertEqual(self.run_program(), (0, "ran\n", ""))

    def test_and_fails_if_the_package_cannot_be_imported(self):
        self.write("packages/weft/__init__.py", "raise ImportError('undefined symbol: weft_start')")
        code, output, errors = self.run_program()
        self.assertEqual((code, output), (1, ""))
        self.assertIn("undefined symbol: weft_start", errors)

    def test_not_without_the_package(self):
        code, output, _ = self.run_program()
        self.assertEqual(code, 77)
        self.assertIn("skipped: weft is not installed", output)

    def test_not_without_a_virtual_environment(self):
        (self.root / "venv/bin/python").unlink()
        self.assertEqual(self.run_program()[0], 77)


class SkippedEnvironment(ScriptCase):
    scripts = ("tools/python_venv.sh", "pyproject.toml")

    def setUp(self):
        super().setUp()
        # Python's pip can install nothing, and its virtual environments have no files but itself.
        self.program("python", f"""case "$*" in
          "-m venv"*) mkdir -p "{self.root}/venv/bin" && ln -sf "$0" "{self.root}/venv/bin/python" ;;
          "-m pip"*) exit 1 ;;
          *) exec {sys.executable} "$@" ;;
        esac""")
        self.program("old", "exit 1")

    def test_has_no_weft_of_an_earlier_run(self):
        for python, reason in (("python", "pip could not install"), ("old", "is not Python 3.11 or later")):
            for name in ("weft/__init__.py", "weft-0.1.dist-info/RECORD", "weftwise/__init__.py"):
                self.write(f"venv/lib/python3.11/site-packages/{name}", "")
            result = self.run_script("tools/python_venv.sh", self.root / "venv", PYTHON=str(self.root / python))
            self.assertEqual(result.returncode, 77, result.stderr)
            self.assertIn(reason, result.stderr)
            self.assertEqual([path.name for path in self.root.glob("venv/lib/*/*/*")], ["weftwise"])


if __name__ == "__main__":
    unittest.main()
