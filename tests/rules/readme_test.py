#!/usr/bin/env python3
"""Checks the README, and the tables of flags in all pages, against the program and the repository.

    readme_test.py WEFT_PROGRAM

The C++ code of the README is part of the consumer project, which is built and run. The program prints lines of the form that the README
shows. Flags of a page's tables are flags of the command that the page is about.
"""
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PROGRAM = ""
COMMANDS = {"README.md": "train", "docs/benchmarks.md": "train", "docs/checkpoints.md": "train", "docs/generating.md": "generate",
            "docs/launching.md": "launch", "docs/planning.md": "plan", "docs/training.md": "train"}
FLAG = re.compile(r"--[a-z][a-z0-9-]*")


def code_blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


class Readme(unittest.TestCase):
    def test_shows_code_that_is_compiled_and_run(self):
        consumer = (ROOT / "tests/consumer/consumer.cc").read_text()
        self.assertTrue(code_blocks("cpp"))
        for block in code_blocks("cpp"):
            self.assertIn(block, consumer)

    def test_names_flags_that_exist(self):
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
            # Rows of a table of flags start with flags as code.
            rows = re.findall(r"^\| (`--[^|]*) \|", page.read_text(), re.MULTILINE)
            shown = {flag for row in rows for flag in FLAG.findall(row)}
            name = str(page.relative_to(ROOT))
            self.assertEqual(bool(shown), name in COMMANDS, name)
            if shown:
                help_text = subprocess.run([PROGRAM, COMMANDS[name], "--help"], check=True, capture_output=True, text=True).stdout
                self.assertLessEqual(shown, set(FLAG.findall(help_text)), name)

    def test_shows_lines_that_the_program_prints(self):
        def form(line):
            return re.sub(r"[0-9a-f]{16}|[\d.]+[kM]?", "N", line)

        of_program = README.partition("## Under PyTorch")[0]
        shown = [line.strip() for line in re.findall(r"^    (?:step|weights) .*$", of_program, re.MULTILINE)]
        items = re.findall(r"^    (model|data|mesh)( +)\S", README, re.MULTILINE)
        self.assertEqual((len(shown), len(items)), (4, 3))
        sizes = ["--layers", "1", "--dim", "16", "--heads", "2", "--seq-len", "16", "--steps", "1"]
        printed = subprocess.run([PROGRAM, "train", *sizes], check=True, capture_output=True, text=True).stdout.splitlines()
        self.assertLessEqual({form(line) for line in shown}, {form(line) for line in printed})
        for item, gap in items:
            self.assertTrue(any(re.match(rf"{item}{gap}\S", line) for line in printed), item)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop()
    unittest.main()
