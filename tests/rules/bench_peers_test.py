#!/usr/bin/env python3
"""Tests of the peers of the benchmark suite. The argument is the program of peer_stub.cc."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from suite.contestants import Command, Contestant, ContestantError  # noqa: E402


class CheckedResults(unittest.TestCase):
    def test_the_result_of_every_variant_is_checked(self):
        command = Command([[STUB]], {})
        for op in ("all_gather", "reduce_scatter", "all_reduce"):
            with Contestant("stub", 1, lambda _: command) as stub:
                request = {"op": op, "bytes": 400, "repeats": 3}
                self.assertEqual(len(stub.seconds("run", variant="copies", **request)), 3)
                with self.assertRaisesRegex(ContestantError, "the result of 'omits' differs from the expected one"):
                    stub.seconds("run", variant="omits", **request)


if __name__ == "__main__":
    STUB = sys.argv.pop()
    unittest.main()
