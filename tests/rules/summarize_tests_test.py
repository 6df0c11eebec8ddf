#!/usr/bin/env python3
"""Tests of tools/summarize_tests.py on small result folders: every error must count as a failure."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import summarize_tests

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

    def test_counts_a_folder_without_results_as_a_failure(self):
        self.assertEqual(summarize_tests.tally_of_folder(self.results).last_line(), "0 passed, 1 failed")

    def test_fails_on_a_run_without_tests(self):
        self.run_of()
        self.assertEqual(summarize_tests.main([str(self.results)]), 1)


if __name__ == "__main__":
    unittest.main()
