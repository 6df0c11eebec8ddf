"""Commands that start contestants on one node: MPI programs through Open MPI's launcher, Python peers one process per rank."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from suite.contestants import REQUEST_SECONDS, Command, CommandMaker, ContestantError

REPOSITORY = Path(__file__).resolve().parents[2]
PEERS = REPOSITORY / "bench" / "peers"

# Open MPI's reductions and PyTorch allocate memory as large as their data in every call. By default malloc returns such blocks to
# the system, and each call pays for fresh pages. With these settings malloc keeps freed memory.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def open_mpi(program: Path, ranks: int) -> CommandMaker:
    command = (str(REPOSITORY / "tools" / "mpirun.sh"), "-n", str(ranks), str(program))
    return lambda _: Command([command], {**KEEP_FREED_MEMORY, **ONE_THREAD})


def one_process(*words: str) -> CommandMaker:
    return lambda _: Command([words], {**KEEP_FREED_MEMORY, **ONE_THREAD})


def c10d(
    python: Path, script: str, ranks: int, environment: dict[str, str] | None = None, backend: str = "gloo"
) -> CommandMaker:
    """torch.distributed over a backend; the ranks rendezvous in a file. `environment` replaces KEEP_FREED_MEMORY."""

    def make(folder: Path) -> Command:
        common = {"INIT_FILE": str(folder / "store"), "WORLD_SIZE": str(ranks), "BACKEND": backend}
        processes = [("env", f"RANK={rank}", str(python), str(PEERS / script)) for rank in range(ranks)]
        return Command(processes, {**ONE_THREAD, **(KEEP_FREED_MEMORY if environment is None else environment), **common})

    return make


def output_of(*command: str, limit: float = REQUEST_SECONDS) -> str:
    """The output of a program that runs on one thread and ends by itself.

    Errors: ContestantError if it fails, or does not end within `limit` seconds.
    """
    try:
        ended = subprocess.run(command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise ContestantError(f"{command[0]} did not end within {limit} s") from error
    if ended.returncode != 0:
        raise ContestantError(f"{command[0]} failed: {ended.stdout}{ended.stderr}")
    return ended.stdout


def bind_to_cpus(pids: Sequence[int]) -> None:
    """
    Binds ranks with all their threads to the CPUs of this process, in turn. Otherwise the system sometimes leaves two ranks that
    poll on one CPU for a whole run.
    """
    cpus = sorted(os.sched_getaffinity(0))
    for rank, pid in enumerate(pids):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):  # The thread has ended.
                os.sched_setaffinity(int(thread), {cpus[rank % len(cpus)]})
