#!/usr/bin/env python3
"""Checks that every test named in docs/features.md exists. A test is named `file: Suite.Name`; the file is below tests/."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/features.md").read_text()


def named_tests(page):
    """(file, suite, name) of each test named on the page."""
    return re.findall(r"`(\w+\.(?:cc|py)): (\w+)\.(\w+)`", page)


def has_test(source, suite, name):
    """True if a C++ or Python source defines the test."""
    in_cpp = re.search(rf"^TEST(_F|_P)?\({suite}, {name}\)", source, re.MULTILINE)
    in_python = re.search(rf"^class {suite}\((?:(?!^class ).)*?^    def {name}\(self\)", source, re.MULTILINE | re.DOTALL)
    return bool(in_cpp or in_python)


class Features(unittest.TestCase):
    def test_names_tests_that_exist(self):
        self.assertTrue(named_tests(PAGE))
        for file, suite, name in named_tests(PAGE):
            sources = list((ROOT / "tests").rglob(file))
            self.assertEqual(len(sources), 1, f"{file}: found {sources}")
            self.assertTrue(has_test(sources[0].read_text(), suite, name), f"{file} has no {suite}.{name}")

    def test_names_a_test_for_every_feature_that_is_not_missing(self):
        rows = [row for row in re.findall(r"^\| .* \|$", PAGE, re.MULTILINE) if not re.match(r"\| .*proven by \|$", row)]
        self.assertGreater(len(rows), 40)
        for row in rows:
            excused = re.search(r"\| (missing|not applicable)", row)
            self.assertTrue(named_tests(row) or excused, row)
            self.assertEqual(len(re.findall(r"\.(?:cc|py): ", row)), len(named_tests(row)), row)


class Finder(unittest.TestCase):
    def test_finds_tests_only(self):
        source = "TEST(Suite, Name) {\n// TEST(Suite, Other)\nclass Case(unittest.TestCase):\n    def test_it(self):\n"
        self.assertTrue(has_test(source, "Suite", "Name"))
        self.assertTrue(has_test(source, "Case", "test_it"))
        self.assertFalse(has_test(source, "Suite", "Other"))
        self.assertFalse(has_test(source, "Suite", "Nam"))
        self.assertFalse(has_test(source, "Case", "test_that"))
        later = source + "\n\nclass Later(unittest.TestCase):\n    def test_that(self):\n"
        self.assertFalse(has_test(later, "Case", "test_that"))
        self.assertTrue(has_test(later, "Later", "test_that"))


if __name__ == "__main__":
    unittest.main()
