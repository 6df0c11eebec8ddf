"""Section `checkpoints`: saving and loading of a training state, against the disk and torch.distributed.checkpoint."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from suite import launch
from suite.contestants import REQUEST_SECONDS, ContestantError
from suite.emulated import MODEL_ELEMENTS
from suite.progress import log
from suite.rounds import Variant, measure_interleaved
from suite.rows import Goal, Row
from suite.setting import Setting, start
from suite.steps import DEFAULTS, PYTORCH, Mesh, request_of

RANKS = 2
LENGTH = 128
STEPS = 10  # Within which an asynchronous save ends.
ROUNDS = 5
STATE_BYTES = 3 * 4 * MODEL_ELEMENTS  # Weights and two moments in fp32.
BLOCK = 4 << 20


def measure(setting: Setting) -> Iterator[Row]:
    with ExitStack() as stack:
        # On the disk of the build, as /tmp may be memory.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=launch.REPOSITORY / "build" / "bench")))
        weft = start(stack, "weft", RANKS, launch.open_mpi(setting.program("training_step"), RANKS))
        torch_maker = launch.c10d(setting.peers.python, "training_step.py", RANKS)
        torch = start(stack, "PyTorch", RANKS, setting.peer("PyTorch", torch_maker))
        request = request_of(Mesh(1, RANKS), LENGTH)
        own = {**request, **DEFAULTS, "folder": folder / "weft"}
        peer = {**request, **PYTORCH, "folder": folder / "torch"}
        save = {
            "weft": lambda: weft.seconds("save", **own),
            "torch.distributed.checkpoint": lambda: torch.seconds("save", **peer),
            "dd": lambda: [write_by_dd(folder)],
        }
        load = {
            "weft": lambda: weft.seconds("load", **own),
            "torch.distributed.checkpoint": lambda: torch.seconds("load", **peer),
            "dd": lambda: [read_by_dd(folder)],
        }
        for what, contestants in (("save", save), ("load from the disk", load)):
            what = f"{what}, {STATE_BYTES // 10**6} MB, {RANKS} ranks"
            log(f"  {what}")
            variants = [Variant(name, lambda run=run: uncached(folder, run)) for name, run in contestants.items()]
            result = measure_interleaved(variants, setting.rounds(ROUNDS), 1e3)
            goals = [Goal(("torch.distributed.checkpoint",), 1.0, "torch's time / weft's"), Goal(("dd",), 0.9, "dd's time / weft's")]
            yield Row(what, "ms", "weft", result.rounds, result.missing, goals)

        what = f"{STEPS} steps, {LENGTH} tokens a rank, with an asynchronous save"
        log(f"  {what}")
        variants = [
            Variant(name, lambda saves=saves: weft.seconds("steps_with_save", **own, steps=STEPS, saves=saves))
            for name, saves in (("weft", 1), ("without a save", 0))
        ]
        result = measure_interleaved(variants, setting.rounds(ROUNDS), 1e3)
        yield Row(what, "ms", "weft", result.rounds, result.missing)


def uncached(folder: Path, run: Callable[[], Sequence[float]]) -> Sequence[float]:
    """Runs with none of the folder's files in memory. REQUIRES: they are flushed."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return run()


def write_by_dd(folder: Path) -> float:
    """Seconds in which one dd for each rank writes and flushes its part of the bytes."""
    count = STATE_BYTES // RANKS // BLOCK
    flags = [f"bs={BLOCK}", f"count={count}", "conv=fsync", "status=none"]
    return seconds_of([["dd", "if=/dev/zero", f"of={folder}/dd-{rank}", *flags] for rank in range(RANKS)])


def read_by_dd(folder: Path) -> float:
    return seconds_of([["dd", f"if={folder}/dd-{rank}", "of=/dev/null", f"bs={BLOCK}", "status=none"] for rank in range(RANKS)])


def seconds_of(commands: list[list[str]], limit: float = REQUEST_SECONDS) -> float:
    """Seconds until all commands, started side by side, have ended.

    Errors: ContestantError if one fails, or does not end within `limit` seconds.
    """
    begin = time.perf_counter()
    with ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(command)) for command in commands]

        def kill_all() -> None:
            for process in processes:
                process.kill()  # Does nothing if it has ended.

        stack.callback(kill_all)  # Before the stack waits for them.
        timer = threading.Timer(limit, kill_all)  # A wait with a timeout would poll, up to 50 ms apart.
        timer.start()
        stack.callback(timer.cancel)
        codes = [process.wait() for process in processes]
        seconds = time.perf_counter() - begin
    if failed := [command for command, code in zip(commands, codes, strict=True) if code != 0]:
        reason = f"{failed[0][0]} did not end within {limit} s" if seconds >= limit else f"{failed[0]} failed"
        raise ContestantError(reason)
    return seconds
