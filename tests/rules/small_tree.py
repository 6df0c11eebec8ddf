"""A test case of a rule, on a small source tree in a folder of its own."""
import pathlib
import tempfile
import unittest


class SmallTree(unittest.TestCase):
    rule = None  # The module of the rule, which has violations(root).

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def violations(self):
        return list(self.rule.violations(self.root))
