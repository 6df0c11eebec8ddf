#!/usr/bin/env python3
"""Tests of the peers of the benchmark suite. The argument is the program of peer_stub.cc."""

import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "peers")]

from host_barrier import HostBarrier  # noqa: E402
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


class Barrier(unittest.TestCase):
    def test_no_rank_leaves_before_all_have_come(self):
        ranks, calls = 3, 20
        arrived = [0] * ranks
        early = []

        def run(rank):
            barrier = HostBarrier(rank, ranks)
            for call in range(1, calls + 1):
                arrived[rank] = call
                barrier.wait()
                if min(arrived) < call:
                    early.append((rank, call))

        with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", WEFT_BENCH_SOCKET=f"{folder}/socket"):
            threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual((arrived, early), ([calls] * ranks, []))


if __name__ == "__main__":
    STUB = sys.argv.pop()
    unittest.main()
