"""A rank of a RankPool: runs functions that the pool names until the pool closes the connection."""

import contextlib
import importlib
import os
import pickle
import traceback
import warnings
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Client

import torch
import torch.distributed as dist

warnings.filterwarnings("ignore", category=FutureWarning)


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


def run(module: str, name: str, arguments: tuple) -> tuple[bool, object]:
    try:
        return True, pickle.dumps(getattr(importlib.import_module(module), name)(*arguments))
    except BaseException:
        return False, traceback.format_exc()


def main() -> None:
    torch.set_num_threads(1)
    connection = Client(os.environ["TEST_ADDRESS"])
    connection.send(int(os.environ["RANK"]))
    is_ok, answer = run(__name__, "init_group", ())
    connection.send((is_ok, answer))
    while is_ok:
        try:
            request = connection.recv()
        except EOFError:
            break
        connection.send(run(*request))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
