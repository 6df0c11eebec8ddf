#!/usr/bin/env python3
"""Tests of the peers of the benchmark suite. The argument is the program of peer_program.cc."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "peers")]

from host_barrier import HostBarrier  # noqa: E402
from suite import hosts, peers  # noqa: E402
from suite.contestants import Command, Contestant, ContestantError  # noqa: E402


class CheckedResults(unittest.TestCase):
    def test_the_result_of_every_variant_is_checked(self):
        command = Command([[PROGRAM]], {})
        for op in ("all_gather", "reduce_scatter", "all_reduce"):
            with Contestant("peer", 1, lambda _: command) as peer:
                request = {"op": op, "bytes": 400, "repeats": 3}
                self.assertEqual(len(peer.seconds("run", variant="copies", **request)), 3)
                with self.assertRaisesRegex(ContestantError, "the result of 'omits' differs from the expected one"):
                    peer.seconds("run", variant="omits", **request)


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
            threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=60)  # A rank that fails leaves the others at the barrier.
        self.assertEqual((arrived, early), ([calls] * ranks, []))


@unittest.skipUnless(shutil.which("g++"), "there is no g++")
class Programs(unittest.TestCase):
    """Builds a program of a peer from small sources, of which one includes a header."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        sources = self.root / "bench" / "peers"
        sources.mkdir(parents=True)
        self.header = sources / "peer_collectives.h"
        self.header.write_text("inline int Result() { return 0; }\n")
        (sources / "mpi_collectives.cc").write_text('#include "bench/peers/peer_collectives.h"\nint main() { return Result(); }\n')
        for name in ("peers/peer_collectives", "contestant", "host_barrier", "mpi_baseline"):
            (self.root / "bench" / f"{name}.cc").touch()
        self.versions = {"impi-devel": "2021.1", "impi-rt": "2021.1", "torch": "2.0"}

    def builds(self):
        """Prepares the program, and returns whether that compiled it."""
        changes = {"REPOSITORY": self.root, "PEERS": self.root / "bench" / "peers", "_install": mock.DEFAULT}
        installed = mock.patch.object(peers.Peers, "installed", return_value=self.versions)
        run = mock.patch.object(peers, "_run", wraps=peers._run)
        with mock.patch.multiple(peers, **changes), installed, run as commands:
            peers._build(peers.Peers(self.root), "program", "mpi_collectives.cc", "impi-devel", [])
        self.assertTrue((self.root / "program").exists())
        return any("-o" in call.args for call in commands.mock_calls)

    def test_a_program_is_built_once(self):
        self.assertEqual([self.builds(), self.builds()], [True, False])

    def test_a_program_is_built_again_if_a_header_has_changed(self):
        self.builds()
        self.header.write_text("inline int Result() { return 1; }\n")
        os.utime(self.header, (0, 0))  # As a checkout of an older file may have it.
        self.assertTrue(self.builds())

    def test_a_program_is_built_again_if_its_library_has_changed(self):
        self.builds()
        self.versions["torch"] = "2.1"
        self.assertFalse(self.builds())
        self.versions["impi-rt"] = "2021.2"
        self.assertTrue(self.builds())

    def test_a_build_that_fails_is_tried_again(self):
        self.builds()
        self.header.write_text("inline int Result() { return none; }\n")
        for _ in range(2):
            with self.assertRaises(subprocess.CalledProcessError):
                self.builds()


# Takes the place of tools/emulated_hosts.sh.
HOSTS_SCRIPT = """#!/bin/sh
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
        self.write_script(HOSTS_SCRIPT)
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
        self.write_script(HOSTS_SCRIPT.replace("shift 4", "shift 4; echo a warning"))
        with self.assertRaisesRegex(hosts.HostsError, "^a warning\n"):
            hosts.EmulatedHosts(2, "1gbit", 1)



if __name__ == "__main__":
    PROGRAM = sys.argv.pop()
    unittest.main()
