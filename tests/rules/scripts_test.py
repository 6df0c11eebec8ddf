#!/usr/bin/env python3
"""Tests of scripts in tools/: their help, the names that they refuse, their lock, what tools/test.sh leaves in a build,
which sources tools/lint.sh reads, and how tools/fuzz.sh ends."""
import os
import shutil
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


class Fuzz(ScriptCase):
    scripts = (FUNCTIONS, "tools/fuzz.sh")

    def setUp(self):
        super().setUp()
        self.program("bin/cmake", "mkdir -p build/fuzz")
        self.program("bin/clang++-14", "true")
        for target in ("first", "second"):
            (self.root / "tests/fuzz/corpus" / target).mkdir(parents=True)
            self.program(f"build/fuzz/tests/fuzz/fuzz_{target}", f"echo {target} >>ran; exit $(cat result)")

    def fuzz(self, result, *arguments):
        """(exit code, the targets that ran, standard output)"""
        self.write("result", str(result))
        self.write("ran", "")
        done = self.run_script("tools/fuzz.sh", *arguments)
        return done.returncode, (self.root / "ran").read_text().split(), done.stdout

    def test_goes_on_after_a_finding(self):
        code, ran, output = self.fuzz(77, "1")
        self.assertEqual((code, ran), (1, ["first", "second"]))
        self.assertIn("see build/fuzz/corpus/first/log", output)

    def test_ends_by_a_signal_without_a_finding(self):
        for result in (72, 130, 143):  # libFuzzer's exit code of an interrupted run, and those of a shell.
            code, ran, output = self.fuzz(result, "1")
            self.assertEqual((code, ran), (130, ["first"]))
            self.assertNotIn("see build", output)

    def test_refuses_no_time(self):
        for seconds in ("0", "00", "-1", "1s"):
            self.assertEqual(self.fuzz(0, seconds)[:2], (2, []))


@unittest.skipUnless(shutil.which("git"), "git is not installed")
class Lint(ScriptCase):
    scripts = ("tools/lint.sh",)

    def setUp(self):
        super().setUp()
        # Each configuration compiles the sources that CMakeLists.txt names.
        self.program("bin/cmake", f"""mkdir -p build/debug
            grep -o '[a-z]*[.]cc' CMakeLists.txt | sed "s|.*|\\"file\\": \\"{self.root}/&\\"|" >build/debug/compile_commands.json""")
        self.program("bin/clang-tidy-14", 'grep -H defect "${@: -1}" && exit 1 || exit 0')
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commit("first.cc", "main.cc")

    def git(self, *words):
        names = [word for name in ("author", "committer") for word in ("-c", f"{name}.name=a", "-c", f"{name}.email=a@b.c")]
        own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}  # Not the settings of the user: commits may be signed.
        subprocess.run(["git", *names, *words], cwd=self.root, check=True, capture_output=True, env=os.environ | own)

    def commit(self, source, *compiled, text=""):
        """Commits a source and a CMakeLists.txt."""
        self.write(source, f"// {source}\n{text}")
        self.write("CMakeLists.txt", f"add_executable(program {' '.join(compiled)})\n")
        self.git("add", "--all", "--", "*.cc", "*.txt")
        self.git("commit", "--quiet", "--message", source)

    def test_reads_sources_that_are_newer_than_the_configuration(self):
        self.assertEqual(self.run_script("tools/lint.sh").returncode, 77)  # There is no parent to compare with.
        self.commit("main.cc", "main.cc")
        self.assertEqual(self.run_script("tools/lint.sh").returncode, 0)
        self.commit("later.cc", "main.cc", "later.cc", text="defect\n")
        result = self.run_script("tools/lint.sh")
        self.assertEqual((result.returncode, "later.cc:defect" in result.stdout), (1, True), result.stdout + result.stderr)

    def test_finds_a_source_that_no_build_compiles(self):
        self.commit("lost.cc", "main.cc")
        result = self.run_script("tools/lint.sh")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("lost.cc: error: no CMakeLists.txt names this source", result.stdout)

    def test_accepts_a_source_of_another_build(self):
        self.commit("variant.cc", "main.cc)\nset(other variant")
        self.assertEqual(self.run_script("tools/lint.sh").returncode, 0)


if __name__ == "__main__":
    unittest.main()
