#!/usr/bin/env python3
"""Tests of scripts in tools/: their help, the names that they refuse, their lock, and what tools/test.sh leaves in a build."""
import os
import subprocess
import unittest

from script_case import ScriptCase

FUNCTIONS = "tools/script_functions.sh"


class Help(ScriptCase):
    scripts = (FUNCTIONS, "tools/test.sh", "tools/faults.sh", "tools/fuzz.sh", "tools/quickstart.sh")

    def setUp(self):
        super().setUp()
        for name in ("bin/cmake", "bin/ctest", "tools/setup.sh"):
            self.program(name, f"touch {self.root}/started; exit 1")

    def test_is_the_comment_at_the_top_and_starts_nothing(self):
        before = set(self.root.rglob("*"))
        for script in self.scripts[1:]:
            for arguments in (["--help"], ["-h"], ["release", "--help"]):
                result = self.run_script(script, *arguments)
                self.assertEqual((result.returncode, result.stderr), (0, ""), script)
                self.assertIn(f"\n  {script} ", result.stdout)
                self.assertNotIn("set -", result.stdout)
        self.assertEqual(set(self.root.rglob("*")), before)


class TestScript(ScriptCase):
    scripts = (FUNCTIONS, "tools/test.sh")

    # Keeps the options of benchmarks in the cache, as CMake does.
    CMAKE = """case "$1 $2" in
      "--preset "*) mkdir -p "build/$2"; shift 2; printf 'WEFT_BENCH_OPTIONS:STRING=%s\\nOTHER:STRING=-O1\\n' "${2#WEFT_BENCH_OPTIONS=}" \
                    >build/release/CMakeCache.txt ;;
      "--build "*) cp build/release/CMakeCache.txt built_with; exit "${BUILD_RESULT:-0}" ;;
    esac"""

    def setUp(self):
        super().setUp()
        self.program("bin/cmake", self.CMAKE)
        self.program("bin/ctest", "true")
        self.program("tools/setup.sh", "true")
        self.program("tools/summarize_tests.py", 'exit "${BUILD_RESULT:-0}"')

    def test_leaves_the_usual_options_of_benchmarks_in_a_build(self):
        for result in ("0", "1"):
            self.assertEqual(self.run_script("tools/test.sh", "release", BUILD_RESULT=result).returncode, int(result))
            self.assertIn("WEFT_BENCH_OPTIONS:STRING=-O1\n", (self.root / "built_with").read_text())
            self.assertEqual((self.root / "build/release/CMakeCache.txt").read_text(), "WEFT_BENCH_OPTIONS:STRING=\nOTHER:STRING=-O1\n")

    def test_refuses_what_is_no_preset(self):
        kept = self.write("build/release/results/ctest.xml", "")
        for arguments in (["relaese"], ["release", "--fast"], [".."]):
            result = self.run_script("tools/test.sh", *arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"'{arguments[-1]}' is not a preset", result.stderr)
        self.assertEqual([path.name for path in (self.root / "build").iterdir()], ["release"])
        self.assertTrue(kept.exists())


class Lock(ScriptCase):
    scripts = (FUNCTIONS, "tools/test.sh", "tools/faults.sh", "tools/quickstart.sh")

    def setUp(self):
        super().setUp()
        self.program("tools/setup.sh", "true")
        self.program("tools/summarize_tests.py", "true")
        self.program("bin/cmake", "true")
        # The tests of the first run tell that they have started, and last until the other end of the pipe is closed.
        os.mkfifo(self.root / "go_on")
        self.program("bin/ctest", f"echo started; cat {self.root}/go_on")

    def test_lets_one_script_use_the_builds_of_a_tree(self):
        first = subprocess.Popen([self.root / "tools/test.sh", "release"], env=self.environment(), stdout=subprocess.PIPE, text=True)
        self.addCleanup(first.communicate)
        self.addCleanup(first.kill)
        self.assertIn("started\n", iter(first.stdout.readline, ""))
        with open(self.root / "go_on", "w"):
            results = self.write("build/release/results/ctest.xml", "")
            for script in self.scripts[1:]:
                other = self.run_script(script)
                self.assertEqual(other.returncode, 2, other.stderr)
                self.assertEqual(other.stderr, f"{script[6:]}: tools/test.sh release (process {first.pid}) uses build/ of this tree: "
                                               "wait for its end, or work in another clone\n")
            self.assertTrue(results.exists())
        self.assertEqual(first.wait(timeout=60), 0)
        self.program("bin/ctest", "true")
        self.assertEqual(self.run_script("tools/test.sh", "release").returncode, 0)


if __name__ == "__main__":
    unittest.main()
