"""Emulated hosts: network namespaces of this machine behind links of a chosen rate (tools/emulated_hosts.sh)."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from suite.contestants import Command, CommandMaker
from suite.launch import KEEP_FREED_MEMORY, ONE_THREAD, PEERS, REPOSITORY

TOOLS = REPOSITORY / "tools"
READY = "ready"  # The first line if the hosts exist. Each value has a line of its own, as paths may have spaces.
VALUES = ("WEFT_ON_HOST", "WEFT_HOST_INTERFACE", "TMPDIR", "WEFT_HOSTS")
REPORT = f"printf '%s\\n' {READY} " + " ".join(f'"${name}"' for name in VALUES) + "; exec cat"


class HostsError(RuntimeError):
    """The hosts cannot be created on this machine; the message gives the reason."""


class EmulatedHosts:
    """Use as a context manager. The hosts exist while a pipe to the script is open, so they end even if the suite is killed."""

    def __init__(self, count: int, rate: str, ranks_per_host: int) -> None:
        self.ranks_per_host = ranks_per_host
        self._script = subprocess.Popen(
            [str(TOOLS / "emulated_hosts.sh"), "--hosts", str(count), "--rate", rate, "sh", "-c", REPORT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        assert self._script.stdin is not None and self._script.stdout is not None
        if (line := self._script.stdout.readline().strip()) != READY:
            with self._script:  # Closes the pipes, which ends the script, and waits for it.
                self._script.stdin.close()
                raise HostsError(f"{line}\n{self._script.stdout.read()}".strip())
        values = [self._script.stdout.readline().removesuffix("\n") for _ in VALUES]
        self._on_host, self._interface, self._temporary, names = values
        self._names = names.split()

    @property
    def ranks(self) -> int:
        return self.ranks_per_host * len(self._names)

    def open_mpi(self, program: Path, transport: str) -> CommandMaker:
        """`transport`: a value of WEFT_TRANSPORT."""
        words = (str(TOOLS / "hosts_mpirun.sh"), "--ppn", str(self.ranks_per_host), str(program))
        environment = {
            **KEEP_FREED_MEMORY,
            **ONE_THREAD,
            "WEFT_HOSTS": " ".join(self._names),
            "WEFT_ON_HOST": self._on_host,
            "WEFT_HOST_INTERFACE": self._interface,
            "TMPDIR": self._temporary,  # Open MPI's session folders.
            "WEFT_TRANSPORT": transport,
        }
        return lambda _: Command([words], environment)

    def c10d(self, python: Path, script: str, backend: str = "gloo") -> CommandMaker:
        def make(folder: Path) -> Command:
            store = {"INIT_FILE": str(folder / "store"), "WORLD_SIZE": str(self.ranks), "BACKEND": backend}
            processes = [
                (self._on_host, host, shlex.join(["env", f"RANK={index * self.ranks_per_host + rank}", str(python), str(PEERS / script)]))
                for index, host in enumerate(self._names)
                for rank in range(self.ranks_per_host)
            ]
            network = {"GLOO_SOCKET_IFNAME": self._interface}
            return Command(processes, {**ONE_THREAD, **KEEP_FREED_MEMORY, **network, **store})

        return make

    def __enter__(self) -> EmulatedHosts:
        return self

    def __exit__(self, *_: object) -> None:
        self._script.communicate()
