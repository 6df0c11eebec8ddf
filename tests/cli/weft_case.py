"""Base class of the program's tests: runs it, with or without mpirun, in a temporary folder.

    TEST.py WEFT MPIRUN [unittest arguments]
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

# A model so small that a step takes milliseconds.
SMALL = ["--layers", "2", "--dim", "16", "--heads", "2", "--ffn-dim", "24", "--seq-len", "16"]
TEXT = "The quick brown fox jumps over the lazy dog. " * 40


def weights_hash(output):
    return re.search(r"^weights (xxh64:[0-9a-f]{16})$", output, re.MULTILINE).group(1)


class WeftCase(unittest.TestCase):
    weft = None
    mpirun = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = self.write("text.txt", TEXT)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def command(self, arguments, ranks):
        launcher = [] if ranks is None else [self.mpirun, "-n", str(ranks)]
        return [str(word) for word in [*launcher, self.weft, *arguments]]

    def run_weft(self, *arguments, ranks=None, env=None, text=None):
        """Runs the program; without mpirun if `ranks` is None. `text` is its standard input."""
        # Open MPI fails if a job removes the folder of sessions, which all share by default, while another one makes it.
        with tempfile.TemporaryDirectory() as sessions:
            return subprocess.run(self.command(arguments, ranks), capture_output=True, text=True, input=text, cwd=self.folder,
                                  env=os.environ | {"OMPI_MCA_orte_tmpdir_base": sessions} | (env or {}), timeout=120)

    def train(self, *arguments, ranks=None, env=None):
        result = self.run_weft("train", *SMALL, "--data", self.text, *arguments, ranks=ranks, env=env)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def files(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))

    def assert_refused(self, code, words, *arguments, ranks=None):
        """The program exits with `code`, prints one message that contains `words`, and leaves no new files."""
        before = self.files()
        result = self.run_weft(*arguments, ranks=ranks)
        messages = [line for line in result.stderr.splitlines() if line.startswith("weft:")]
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertEqual(len(messages), 1, result.stderr)
        for word in words:
            self.assertIn(word, messages[0])
        self.assertEqual(self.files(), before)


class ConcurrentRunner:
    """Runs several tests at a time, as most of them wait for mpirun, which takes long to start. Prints the failures, and skipped tests
    as tools/summarize_tests.py reads them."""

    def __init__(self, jobs):
        self.jobs = jobs

    @staticmethod
    def cases(suite):
        for test in suite:
            if isinstance(test, unittest.TestSuite):
                yield from ConcurrentRunner.cases(test)
            else:
                yield test

    @staticmethod
    def run_case(case):
        result = unittest.TestResult()
        case.run(result)
        return result

    def run(self, suite):
        total = unittest.TestResult()
        cases = list(self.cases(suite))
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            results_of = pool.map if self.jobs > 1 else map  # A test alone may redirect standard output.
            for case, result in zip(cases, results_of(self.run_case, cases), strict=True):
                if not result.skipped or not result.wasSuccessful():
                    print(f"{'ok' if result.wasSuccessful() else 'FAILED':7}  {case.id()}", flush=True)
                for test, reason in result.skipped:
                    print(f"skipped  {test.id()}: {reason}", flush=True)
                for _, trace in result.failures + result.errors:
                    print(trace, flush=True)
                total.testsRun += result.testsRun
                for outcome in ("failures", "errors", "skipped", "expectedFailures", "unexpectedSuccesses"):
                    getattr(total, outcome).extend(getattr(result, outcome))
        print(f"{total.testsRun} tests, {len(total.failures) + len(total.errors)} failed, {len(total.skipped)} skipped")
        return total


def main(jobs=1):
    """`jobs` tests run at a time. REQUIRES: tests share no state if that is more than one."""
    WeftCase.weft, WeftCase.mpirun = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], testRunner=ConcurrentRunner(jobs))
