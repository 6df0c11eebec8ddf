"""Functions that the ranks of a pool run: single tests of torch.testing._internal.distributed.distributed_test."""

import contextlib
import gc
import os
import re
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from cuda_stand_in import cuda_on_cpu
from suite_decorators import noting_conditions

BACKEND = os.environ["BACKEND"]
TIMEOUT_S = 60
# These tests prepare their model in one branch for nccl and one for gloo, by this name.
_BRANCHES = re.compile("test_accumulate_gradients|test_grads_same_across_ranks")

if "weft" in BACKEND:
    import weft.torch  # noqa: F401

with noting_conditions(BACKEND):
    from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.common_distributed import TEST_SKIPS  # noqa: E402
from torch.testing._internal.common_utils import TestCase  # noqa: E402

_EXIT_REASONS = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}


class Collectives(TestCase, distributed_test.DistributedTest._DistTestBase):
    """The tests, in a process whose rank is known before they start."""

    world_size = os.environ["WORLD_SIZE"]  # A string, as in torch's own runner.
    rank = int(os.environ["RANK"])
    file_name = ""

    @property
    def init_method(self) -> str:
        return f"file://{self.file_name}"

    @property
    def destroy_pg_upon_exit(self) -> bool:
        return False


def conditions() -> dict[str, tuple[bool, tuple[str, ...]]]:
    """By test: whether it is written for GPUs, and the conditions of torch that do not hold for this backend."""
    found = {}
    for name in sorted(name for name in dir(Collectives) if name.startswith("test_")):
        test = getattr(Collectives, name)
        reasons = getattr(test, "skip_reasons", ())
        says_gpu = any(word in text.lower() for text in (name, *reasons) for word in ("cuda", "nccl"))
        found[name] = (getattr(test, "needs_gpu", False) or says_gpu, reasons)
    return found


def _init_group(folder: Path) -> None:
    dist.init_process_group(
        BACKEND,
        init_method=f"file://{folder / 'group'}",
        rank=Collectives.rank,
        world_size=int(Collectives.world_size),
        timeout=timedelta(seconds=TIMEOUT_S),
    )


def run_test(name: str, folder: str, on_cpu: bool) -> tuple[str, str]:
    """Runs a test in a process group of its own: "passed", "skipped" or "failed", and the reason."""
    place = Path(folder)
    os.environ["TEMP_DIR"] = folder
    distributed_test.Barrier.barrier_id = 0
    if dist.is_initialized():
        dist.destroy_process_group()
    _init_group(place)
    test = Collectives(name)
    test.file_name = str(place / "more")
    distributed_test.BACKEND = "gloo" if _BRANCHES.match(name) else BACKEND
    distributed_test.INIT_METHOD = f"file://{place / 'again'}"
    torch.manual_seed(0)
    try:
        test._barrier()
        with cuda_on_cpu(int(Collectives.world_size)) if on_cpu else contextlib.nullcontext():
            getattr(test, name)()
            test.doCleanups()
        test._barrier()
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        return "skipped", _EXIT_REASONS.get(end.code, f"exit code {end.code}")
    except BaseException:
        return "failed", traceback.format_exc()
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)
        os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    return "passed", ""
