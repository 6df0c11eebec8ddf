#!/usr/bin/env python3
"""Tests of scripts in tools/: their help, the names that they refuse, and what tools/test.sh leaves in a build."""
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


if __name__ == "__main__":
    unittest.main()
