#!/usr/bin/env python3
"""Counts the results of a test run: every case of GoogleTest and pytest, and every other test of ctest.

    tools/summarize_tests.py RESULTS_DIR...

A results folder holds ctest.xml (`ctest --output-junit`), one <test>.json (`--gtest_output`) for each GoogleTest
program that finished, and one <test>.xml (`--junitxml`) for each run of pytest that finished. The script lists failures
and skipped tests. Other tests print `skipped  CASE: REASON` for each of their cases that they leave out. The last line
is `N passed, N failed`, followed by `, N skipped` if there are any. A program that crashed, hung or could not start
counts as one failure. A folder without ctest.xml counts as one failure, too: its build failed. The end of the output of
a failed test that has no such report is repeated, and that of a failed case of pytest. Exit code: 1 if anything failed
or nothing passed.
"""
import dataclasses
import json
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

SKIPPED_CASE = re.compile(r"^skipped  (\S.*)$", re.MULTILINE)
REPEATED_LINES = 40  # Of the output of a failed test, or of the failure of a case.


@dataclasses.dataclass
class Tally:
    passed: int = 0
    failed: list = dataclasses.field(default_factory=list)
    skipped: list = dataclasses.field(default_factory=list)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def last_line(self):
        line = f"{self.passed} passed, {len(self.failed)} failed"
        return line + (f", {len(self.skipped)} skipped" if self.skipped else "")


def tally_of_cases(report, program):
    """The cases of one GoogleTest report; disabled ones count as skipped."""
    tally = Tally()
    for suite in report["testsuites"]:
        for case in suite["testsuite"]:
            name = f"{program}: {suite['name']}.{case['name']}"
            if case.get("failures"):
                tally.failed.append(name)
            elif case["status"] == "NOTRUN" or case["result"] == "SKIPPED":
                tally.skipped.append(name)
            else:
                tally.passed += 1
    return tally


def tally_of_pytest(root, test):
    """The cases of one report of pytest. An error before or after a case counts as its failure."""
    tally = Tally()
    for case in root.iter("testcase"):
        name = f"{test}: {case.get('classname')}.{case.get('name')}"
        failures, skip = [*case.iter("failure"), *case.iter("error")], case.find("skipped")
        if failures:
            tally.failed.append(name + end_of(failures[0].text))
        elif skip is not None:
            tally.skipped.append(f"{name}: {skip.get('message', '')}")
        else:
            tally.passed += 1
    return tally


def tally_of_report(results, name):
    """The cases of a report of GoogleTest or pytest; None if the program did not finish, or writes none."""
    try:
        return tally_of_cases(json.loads((results / f"{name}.json").read_text()), name)
    except (FileNotFoundError, json.JSONDecodeError):
        pass
    try:
        return tally_of_pytest(ElementTree.parse(results / f"{name}.xml").getroot(), name)
    except (FileNotFoundError, ElementTree.ParseError):
        return None


def last_line_of(text):
    return (text.strip().splitlines() or [""])[-1]


def outcome_of(test):
    """The result of one test of ctest: ("passed" | "failed" | "skipped", reason)."""
    if test.get("status") == "run":
        return "passed", ""
    if test.get("status") == "disabled":
        return "skipped", "disabled"
    skip = test.find("skipped")
    reason = skip.get("message", "") if skip is not None else ""
    if reason.startswith("SKIP_"):  # Any other test that did not run counts as failed.
        return "skipped", last_line_of(test.findtext("system-out") or "")
    failure = test.find("failure")
    return "failed", reason or (failure.get("message", "") if failure is not None else "")


def end_of(text):
    lines = (text or "").strip().splitlines()[-REPEATED_LINES:]
    return "".join(f"\n           {line}" for line in lines)


def tally_of_test(test, results):
    name = test.get("name")
    outcome, why = outcome_of(test)
    report = tally_of_report(results, name)
    tally = report or Tally()
    if outcome == "skipped":
        tally.skipped.append(f"{name}: {why}")
    elif outcome == "failed" and not tally.failed:
        tally.failed.append(f"{name}: {why}{end_of(test.findtext('system-out'))}")
    elif outcome == "passed" and report is None:
        tally.passed += 1
    elif outcome == "passed" and tally == Tally():
        tally.failed.append(f"{name}: ran no case; its filter may name none")
    if report is None:
        tally.skipped += [f"{name}: {case}" for case in SKIPPED_CASE.findall(test.findtext("system-out") or "")]
    return tally


def tally_of_folder(results):
    xml = results / "ctest.xml"
    if not xml.is_file():
        return Tally(failed=[f"no {xml}: the build failed, or ctest did not finish"])
    tally = Tally()
    for test in ElementTree.parse(xml).getroot().iter("testcase"):
        tally.add(tally_of_test(test, results))
    return tally


def main(folders):
    if not folders:
        print(__doc__, file=sys.stderr)
        return 2
    total = Tally()
    for folder in map(pathlib.Path, folders):
        tally = tally_of_folder(folder)
        print(f"{folder}: {tally.last_line()}")
        total.add(tally)
    for name in total.skipped:
        print(f"  skipped  {name}")
    for name in total.failed:
        print(f"  FAILED   {name}")
    print(total.last_line())
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
