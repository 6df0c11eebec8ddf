#!/usr/bin/env python3
"""Tests of the peers of the benchmark suite. The argument is the program of peer_stub.cc."""

import shlex
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "peers")]

from host_barrier import HostBarrier  # noqa: E402
from suite import hosts  # noqa: E402
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


# Takes the place of tools/emulated_hosts.sh.
HOSTS_STUB = """#!/bin/sh
shift 4
export WEFT_HOSTS="one two" WEFT_ON_HOST="$TMPDIR/on host" WEFT_HOST_INTERFACE=weft0
exec "$@"
"""


class Hosts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "a folder"
        self.folder.mkdir()
        for patch in (mock.patch.object(hosts, "TOOLS", self.folder), mock.patch.dict("os.environ", TMPDIR=str(self.folder))):
            patch.start()
            self.addCleanup(patch.stop)

    def write_script(self, text):
        script = self.folder / "emulated_hosts.sh"
        script.write_text(text)
        script.chmod(0o755)

    def test_paths_may_have_spaces(self):
        self.write_script(HOSTS_STUB)
        with hosts.EmulatedHosts(2, "1gbit", 1) as emulated, mock.patch.object(hosts, "PEERS", self.folder):
            self.assertEqual(emulated.ranks, 2)
            environment = emulated.open_mpi(Path("program"), "tcp")(self.folder).environment
            command = emulated.c10d(self.folder / "python", "step.py")(self.folder)
        self.assertEqual(environment["WEFT_HOSTS"], "one two")
        self.assertEqual(environment["TMPDIR"], str(self.folder))
        self.assertEqual(environment["WEFT_ON_HOST"], f"{self.folder}/on host")
        self.assertEqual([process[:2] for process in command.processes], [(f"{self.folder}/on host", host) for host in ("one", "two")])
        words = shlex.split(command.processes[1][2])  # As the shell of the host does.
        self.assertEqual(words, ["env", "RANK=1", f"{self.folder}/python", f"{self.folder}/step.py"])

    def test_hosts_that_cannot_be_created_fail_with_the_reason(self):
        self.write_script("#!/bin/sh\necho no root\necho at all\nexit 77\n")
        with self.assertRaisesRegex(hosts.HostsError, "^no root\nat all$"):
            hosts.EmulatedHosts(2, "1gbit", 1)

    def test_other_output_before_the_names_is_the_reason(self):
        self.write_script(HOSTS_STUB.replace("shift 4", "shift 4; echo a warning"))
        with self.assertRaisesRegex(hosts.HostsError, "^a warning\n"):
            hosts.EmulatedHosts(2, "1gbit", 1)



if __name__ == "__main__":
    STUB = sys.argv.pop()
    unittest.main()
