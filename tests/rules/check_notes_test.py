#!/usr/bin/env python3
"""Tests of check_notes.py on small trees."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_notes
from small_tree import SmallTree

DEFINITION = "// A thing.\n//\n// Note [Slow peers]\n// Problem: a peer may be slow.\n"


class CheckNotes(SmallTree):
    rule = check_notes

    def setUp(self):
        super().setUp()
        self.write("src/comm/links/link.h", DEFINITION)

    def test_accepts_citations_also_across_the_end_of_a_line(self):
        self.write("src/comm/a.cc", "// A rank waits: see Note [Slow\n// peers] in src/comm/links/link.h.\n")
        self.write("docs/engine.md", "Notes named Note [...] are in the code: see Note [Slow peers] in\n`links/link.h`.\n")
        self.assertEqual(self.violations(), [])

    def test_finds_a_note_that_does_not_exist(self):
        self.write("src/comm/a.cc", "// See Note [Fast\n// peers].\n")
        self.assertEqual(self.violations(), ["src/comm/a.cc: cites Note [Fast peers], which no file defines"])

    def test_finds_a_note_that_does_not_exist_on_a_line_of_its_own(self):
        self.write("src/comm/a.cc", "int a;  // The rule is in\n// Note [Fast peers]\nint b;\n")
        self.write("src/comm/b.cc", "// Ranks wait, see\n//   Note [Slow peers]\n")
        self.assertEqual(self.violations(), ["src/comm/a.cc: cites Note [Fast peers], which no file defines"])

    def test_accepts_notes_after_a_sentence_code_or_an_empty_line(self):
        for number, before in enumerate(("// A sentence.\n", "int a;\n", "//\n", "// A list:\n", "", "\n", '"""\n')):
            self.write("src/comm/b.cc", f"{before}// Note [Number {number}]\n")
            self.assertEqual(self.violations(), [])

    def test_finds_a_note_of_another_file(self):
        self.write("src/comm/a.cc", "// See Note [Slow peers] in src/comm/links/wire.h.\n")
        self.assertEqual(self.violations(),
                         ["src/comm/a.cc: cites Note [Slow peers] in src/comm/links/wire.h, but src/comm/links/link.h defines it"])

    def test_finds_a_note_that_is_defined_twice(self):
        self.write("src/comm/links/wire.h", "// Note [Slow peers]: a peer may be slow.\n")
        self.assertEqual(self.violations(), ["src/comm/links/wire.h: defines Note [Slow peers], as src/comm/links/link.h does"])


if __name__ == "__main__":
    unittest.main()
