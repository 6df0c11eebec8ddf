"""A rank of a RankPool: runs functions that the pool names until the pool closes the connection."""

import atexit
import contextlib
import importlib
import multiprocessing
import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Client, Connection

import torch
import torch.distributed as dist


def init_group(store_suffix: str = "") -> None:
    backend = os.environ["TEST_BACKEND"]
    if "weft" in backend:
        importlib.import_module("weft.torch")
    size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        backend,
        store=dist.FileStore(os.environ["TEST_STORE"] + store_suffix, size),
        rank=int(os.environ["RANK"]),
        world_size=size,
        timeout=timedelta(seconds=float(os.environ["TEST_TIMEOUT_S"])),
    )


@contextlib.contextmanager
def as_under_torchrun(port: int) -> Iterator[None]:
    """Ranks without a process group, which find each other as those of torchrun do."""
    dist.destroy_process_group()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        init_group(f"-after-{port}")


def _run(function: Callable, *arguments: object) -> tuple[bool, object]:
    try:
        return True, pickle.dumps(function(*arguments))
    except BaseException:
        return False, traceback.format_exc()


def _run_request(request: bytes) -> object:
    function, arguments = pickle.loads(request)
    return function(*arguments)


def serve(connection: Connection, variables: dict[str, str]) -> None:
    warnings.filterwarnings("ignore", category=FutureWarning)
    os.environ.update(variables)
    multiprocessing.set_start_method("fork", force=True)  # As in any process of Linux; this one has inherited the server's method.
    torch.set_num_threads(1)
    is_ok, answer = _run(init_group)
    connection.send((is_ok, answer))
    while is_ok:
        try:
            request = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            break
        connection.send(_run(_run_request, request))
    if dist.is_initialized():
        dist.destroy_process_group()
    atexit._run_exitfuncs()  # A process of multiprocessing ends without them.


def execute(command: list[str], variables: dict[str, str]) -> None:
    """Replaces this process by a command that runs this file with the address of the pool."""
    os.execvpe(command[0], command, os.environ | variables)


if __name__ == "__main__":
    serve(Client(sys.argv[1]), {})
