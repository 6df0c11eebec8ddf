#!/usr/bin/env python3
"""Tests of check_notes.py on small trees."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_notes

DEFINITION = "// A thing.\n//\n// Note [Slow peers]\n// Problem: a peer may be slow.\n"


class CheckNotes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("src/comm/links/link.h", DEFINITION)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def violations(self):
        return list(check_notes.violations(self.root))

    def test_accepts_citations_also_across_the_end_of_a_line(self):
        self.write("src/comm/a.cc", "// A rank waits: see Note [Slow\n// peers] in src/comm/links/link.h.\n")
        self.write("docs/engine.md", "Notes named Note [...] are in the code: see Note [Slow peers] in\n`links/link.h`.\n")
        self.assertEqual(self.violations(), [])

    def test_finds_a_note_that_does_not_exist(self):
        self.write("src/comm/a.cc", "// See Note [Fast\n// peers].\n")
        self.assertEqual(self.violations(), ["src/comm/a.cc: cites Note [Fast peers], which no file defines"])

    def test_finds_a_note_of_another_file(self):
        self.write("src/comm/a.cc", "// See Note [Slow peers] in src/comm/links/wire.h.\n")
        self.assertEqual(self.violations(),
                         ["src/comm/a.cc: cites Note [Slow peers] in src/comm/links/wire.h, but src/comm/links/link.h defines it"])

    def test_finds_a_note_that_is_defined_twice(self):
        self.write("src/comm/links/wire.h", "// Note [Slow peers]: a peer may be slow.\n")
        self.assertEqual(self.violations(), ["src/comm/links/wire.h: defines Note [Slow peers], as src/comm/links/link.h does"])


if __name__ == "__main__":
    unittest.main()
