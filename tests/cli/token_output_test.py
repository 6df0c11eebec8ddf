#!/usr/bin/env python3
"""Tests of the outputs of tools/tokenize.py: where they may be, and runs that write the same one.

Exits with 77 (skipped) without the package `tokenizers`.
"""
import fcntl
import os
import pathlib
import unittest
import unittest.mock

from tokenize_test import ToolCase
from weft_case import ConcurrentRunner


class TokenOutput(ToolCase):
    def test_lies_outside_of_the_folders_that_it_has_the_documents_of(self):
        text = self.write("data/a/b.txt", b"one")
        (self.folder / "link").symlink_to("data")
        for output in "data/out.u16", "data/a/out.u32", "link/out.u16":
            for folder in self.folder / "data", self.folder / "link":
                result = self.run_tool(output, text, folder)
                self.assert_fails(result, 1, f"--output {self.folder / output}: lies in the folder {folder}")
        self.assertEqual([path.name for path in (self.folder / "data").iterdir()], ["a"])
        self.write("data/.hidden/c.txt", b"far")
        for output, path in ("data/out.u16", text), ("data/.hidden/out.u16", self.folder / "data"), ("data.u16", self.folder / "data"):
            result = self.run_tool(output, path)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_refuses_an_output_that_another_run_writes(self):
        text = self.write("a.txt", b"one")
        partial = pathlib.Path(self.write("out.u16.partial", b"tokens of the other run"))
        with open(self.folder / "out.u16.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            result = self.run_tool("out.u16", text)
            self.assertEqual((result.returncode, partial.read_bytes()), (1, b"tokens of the other run"), result.stderr)
            self.assertIn("another run of tokenize.py writes it", result.stderr)
        self.assertEqual(self.run_tool("out.u16", text).returncode, 0)  # The other run may have been killed.
        self.assertEqual(self.tokens("out.u16", "H"), [2])
        self.assertEqual([path.name for path in self.folder.glob("out*")], ["out.u16"])

    def test_does_without_locks_where_there_are_none(self):
        none = "import errno, fcntl\ndef flock(*_): raise OSError(errno.ENOLCK, 'no locks')\nfcntl.flock = flock\n"
        self.write("sitecustomize.py", none.encode())  # Python imports it at its start.
        with unittest.mock.patch.dict(os.environ, PYTHONPATH=str(self.folder)):
            result = self.run_tool("out.u16", self.write("a.txt", b"one"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([path.name for path in self.folder.glob("out*")], ["out.u16"])

    def test_refuses_tokens_that_do_not_fit(self):
        self.assert_fails(self.run_tool("out.u16", self.write("a.txt", b"one far")), 1, "70000", ".u32")


if __name__ == "__main__":
    unittest.main(testRunner=ConcurrentRunner(jobs=1))
