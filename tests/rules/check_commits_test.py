#!/usr/bin/env python3
"""Tests of check_commits.py on small repositories."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_commits

LONGEST = "a" * check_commits.MAX_SUBJECT_LENGTH
# A hook of git runs with variables that name the outer repository.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


@unittest.skipUnless(shutil.which("git"), "git is not installed")
class CheckCommits(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "repository"
        self.root.mkdir()
        self.git("init", "-q")

    def git(self, *arguments):
        options = ["-c", "user.name=weft", "-c", "user.email=weft@localhost", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(self.root), *options, *arguments]
        result = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)
        return result.stdout.strip()

    def commit(self, *paragraphs):
        self.git("commit", "-q", "--allow-empty", *[word for text in paragraphs for word in ("-m", text)])
        return self.git("rev-parse", "HEAD")

    def test_accepts_subjects_of_the_greatest_length(self):
        base = self.commit("base")
        self.commit(LONGEST, "a body may have longer lines " * 10)
        self.assertEqual(check_commits.long_subjects(self.root, base), [])

    def test_finds_a_subject_that_is_too_long(self):
        base = self.commit("base")
        self.commit(LONGEST + "b")
        self.commit("short")
        self.assertEqual([found[1:] for found in check_commits.long_subjects(self.root, base)], [(73, LONGEST + "b")])
        self.assertEqual(check_commits.main(self.root, base), 1)

    def test_counts_characters_rather_than_bytes(self):
        base = self.commit("base")
        self.commit("ü" * check_commits.MAX_SUBJECT_LENGTH)
        self.assertEqual(check_commits.main(self.root, base), 0)

    def test_does_not_read_commits_up_to_the_base(self):
        self.commit(LONGEST + "b")
        base = self.commit(LONGEST + "c")
        self.assertEqual(check_commits.main(self.root, base), 0)

    def test_skips_a_history_without_the_base(self):
        self.commit("short")
        self.assertEqual(check_commits.main(self.root, "0" * 40), 77)

    def test_skips_a_tree_without_history(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(check_commits.main(folder), 77)


if __name__ == "__main__":
    unittest.main()
