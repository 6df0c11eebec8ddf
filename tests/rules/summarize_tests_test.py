#!/usr/bin/env python3
"""Tests of tools/summarize_tests.py on small result folders: every error must count as a failure."""
import contextlib
import html
import io
import json
import pathlib
import sys
import tempfile
import unittest

from script_case import ROOT

sys.path[1:1] = [str(ROOT / folder) for folder in ("tests/cli", "tests/faults")]
sys.path.append(str(ROOT / "tools"))  # Last: its tokenize.py has the name of a module of Python.
import fault_run
import summarize_tests
from fault_results import Results
from weft_case import ConcurrentRunner

FAILED = 'status="fail"><failure message="SEGFAULT"/>'
SKIPPED = 'status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>no namespaces\n</system-out>'
NOT_STARTED = 'status="notrun"><skipped message="Unable to find executable"/>'
PASSED = 'status="run">'


def case(name, result="COMPLETED", failures=()):
    return {"name": name, "status": "RUN", "result": result, "failures": list(failures)}


class SummarizeTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.results = pathlib.Path(folder.name)

    def run_of(self, **tests):
        """Writes ctest.xml for {test: outcome} and returns the tally."""
        cases = "".join(f'<testcase name="{name}" {outcome}</testcase>' for name, outcome in tests.items())
        (self.results / "ctest.xml").write_text(f"<testsuite>{cases}</testsuite>")
        return summarize_tests.tally_of_folder(self.results)

    def report(self, program, *cases):
        report = {"testsuites": [{"name": "Suite", "testsuite": list(cases)}]}
        (self.results / f"{program}.json").write_text(json.dumps(report))

    def test_counts_cases_of_programs_and_other_tests_once_each(self):
        self.report("core_test", case("A"), case("B"))
        self.assertEqual(self.run_of(core_test=PASSED, layers=PASSED).last_line(), "3 passed, 0 failed")

    def test_counts_failed_and_skipped_cases(self):
        self.report("core_test", case("A"), case("B", failures=["x"]), case("C", result="SKIPPED"))
        tally = self.run_of(core_test=FAILED)
        self.assertEqual(tally.last_line(), "1 passed, 1 failed, 1 skipped")
        self.assertEqual(tally.failed, ["core_test: Suite.B"])

    def test_counts_a_program_without_cases_as_a_failure(self):
        self.report("core_test")
        self.assertEqual(self.run_of(core_test=PASSED).failed, ["core_test: ran no case; its filter may name none"])

    def test_counts_cases_of_pytest(self):
        (self.results / "python.training.xml").write_text(
            '<testsuites><testsuite><testcase classname="tests.test_a" name="test_b"/><testcase classname="tests.test_a" name="test_c[2]">'
            '<failure message="assert">E  assert 1 == 2</failure></testcase><testcase classname="tests.test_a" name="test_d"><error message="no rank"/></testcase>'
            '<testcase classname="tests.test_a" name="test_e"><skipped message="no namespaces"/></testcase></testsuite></testsuites>')
        tally = self.run_of(**{"python.training": FAILED})
        self.assertEqual(tally.last_line(), "1 passed, 2 failed, 1 skipped")
        self.assertEqual(tally.failed, ["python.training: tests.test_a.test_c[2]\n           E  assert 1 == 2",
                                        "python.training: tests.test_a.test_d"])
        self.assertEqual(tally.skipped, ["python.training: tests.test_a.test_e: no namespaces"])

    def test_counts_an_incomplete_report_of_pytest_as_a_failure(self):
        (self.results / "python.training.xml").write_text("<testsuites><testsuite>")
        self.assertEqual(self.run_of(**{"python.training": FAILED}).last_line(), "0 passed, 1 failed")

    def test_counts_a_crash_as_a_failure(self):
        self.assertEqual(self.run_of(core_test=FAILED).failed, ["core_test: SEGFAULT"])

    def test_repeats_the_end_of_the_output_of_a_failed_test(self):
        output = "\n".join(f"line {number}" for number in range(1000))
        failed = self.run_of(faults=f'status="fail"><failure message="Failed"/><system-out>{output}</system-out>').failed[0]
        self.assertTrue(failed.startswith("faults: Failed\n"))
        self.assertTrue(failed.endswith("line 999"))
        self.assertNotIn("line 900", failed)

    def test_counts_a_bad_exit_after_good_cases_as_a_failure(self):
        self.report("core_test", case("A"))
        self.assertEqual(self.run_of(core_test=FAILED).last_line(), "1 passed, 1 failed")

    def test_counts_a_program_that_is_missing_as_a_failure(self):
        self.assertEqual(self.run_of(core_test=NOT_STARTED).last_line(), "0 passed, 1 failed")

    def test_counts_an_incomplete_report_as_a_failure(self):
        (self.results / "core_test.json").write_text('{"testsuites": [')
        self.assertEqual(self.run_of(core_test=FAILED).last_line(), "0 passed, 1 failed")

    def test_names_the_reason_of_a_skipped_test(self):
        self.assertEqual(self.run_of(hosts=SKIPPED).skipped, ["hosts: no namespaces"])

    def tally_of_output(self, print_results):
        """The tally of a test that passes and has the output of the function."""
        with contextlib.redirect_stdout(io.StringIO()) as output:
            print_results()
        return self.run_of(cases=f"{PASSED}<system-out>{html.escape(output.getvalue())}</system-out>")

    def test_names_the_cases_that_a_python_test_skips(self):
        class Case(unittest.TestCase):
            def test_passes(self):
                pass

            @unittest.skip("no peft")
            def test_whole(self):
                pass

            def test_partly(self):
                with self.subTest(part=1):
                    self.skipTest("no pyarrow")

        cases = unittest.defaultTestLoader.loadTestsFromTestCase(Case)
        for jobs in (1, 2):
            tally = self.tally_of_output(lambda jobs=jobs: ConcurrentRunner(jobs).run(cases))
            self.assertEqual(tally.last_line(), "1 passed, 0 failed, 2 skipped")
            self.assertRegex("\n".join(tally.skipped), r"cases: .*test_partly.*: no pyarrow\ncases: .*test_whole: no peft")

    def test_names_the_faults_that_are_skipped(self):
        def run():
            results = Results()
            results.add("kill in a step", 137, 2.5, "", [])
            results.add("a full disk", fault_run.SKIPPED, 0, fault_run.CANNOT_MOUNT, [])
            self.assertEqual(results.finish(None), 0)

        self.assertEqual(self.tally_of_output(run).skipped, ["cases: a full disk: mounting a file system needs root"])

    def test_counts_a_folder_without_results_as_a_failure(self):
        self.assertEqual(summarize_tests.tally_of_folder(self.results).last_line(), "0 passed, 1 failed")

    def test_fails_on_a_run_without_tests(self):
        self.run_of()
        self.assertEqual(summarize_tests.main([str(self.results)]), 1)


if __name__ == "__main__":
    unittest.main()
