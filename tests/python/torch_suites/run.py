#!/usr/bin/env python3
"""Runs PyTorch's own tests of distributed backends over weft, and writes a table of their results.

    run.py [--ranks 4] [--backend weft] [--only REGEX] [--table FILE]

The tests are those of torch.testing._internal.distributed.distributed_test in the installed torch. The ranks are processes of
tests/python/rank_pool.py. A test has a process group of its own; a test that fails ends the ranks, and the next gets new ones.

Exit code: 0 if no test failed.
"""

import argparse
import os
import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER)]

import attention_suite  # noqa: E402
from not_applicable import NOT_APPLICABLE  # noqa: E402
from rank_pool import RankError, RankPool  # noqa: E402

# Limit of one test on all ranks.
LIMIT_S = 300


@dataclass(frozen=True)
class Result:
    outcome: str  # passed, failed, not applicable
    for_gpus: bool
    text: str  # The reason, or the tracebacks of the ranks.


class SuiteRunner:
    """Runs single tests, in ranks that live until one of them fails."""

    def __init__(self, ranks: int, backend: str) -> None:
        self._ranks = ranks
        self._backend = backend
        self._pool: RankPool | None = None
        folder = {"RANK": "0", "TEMP_DIR": tempfile.gettempdir(), "INIT_METHOD": "file://"}
        self._environment = {**folder, "BACKEND": backend, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
        os.environ.update(self._environment)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
        import suite_ranks  # Reads the environment.

        self._suite = suite_ranks
        self.conditions = suite_ranks.conditions()

    def run(self, name: str) -> Result:
        for_gpus, _ = self.conditions[name]
        if name in NOT_APPLICABLE:
            return Result("not applicable", for_gpus, NOT_APPLICABLE[name])
        with tempfile.TemporaryDirectory() as folder:
            for part in ("barrier", "test_dir", "init_dir"):
                (Path(folder) / part).mkdir()
            try:
                answers = self._open_pool().run(self._suite.run_test, name, folder, for_gpus)
            except RankError as error:
                return Result("failed", for_gpus, str(error))
        outcomes = {outcome for outcome, _ in answers}
        texts = "\n".join(f"rank {rank}: {text}" for rank, (_, text) in enumerate(answers) if text)
        if outcomes == {"passed"}:
            return Result("passed", for_gpus, "")
        self.close()  # The ranks are in different places.
        if outcomes == {"skipped"}:
            return Result("not applicable", for_gpus, answers[0][1])
        return Result("failed", for_gpus, texts)

    def _open_pool(self) -> RankPool:
        if self._pool is None or not self._pool.is_open:
            environment = {name: value for name, value in self._environment.items() if name != "RANK"}
            self._pool = RankPool(self._ranks, self._backend, environment, limit_s=LIMIT_S)
        return self._pool

    def close(self) -> None:
        if self._pool is not None and self._pool.is_open:
            self._pool.close()


def table_of(results: dict[str, Result], ranks: int, backend: str) -> str:
    import torch

    counts = Counter(result.outcome for result in results.values())
    on_cpu = sum(result.for_gpus and result.outcome == "passed" for result in results.values())
    lines = [
        "# PyTorch's tests over weft",
        "",
        "tools/torch_suites.sh wrote this page. It runs the tests of `torch.testing._internal.distributed.distributed_test`, in the",
        f"installed torch {torch.__version__.split('+')[0]}, over the backend `{backend}` on {ranks} ranks, without a change:",
        "",
        "| tests | passed | failed | not applicable |",
        "|---|---|---|---|",
        f"| {len(results)} | {counts['passed']} | {counts['failed']} | {counts['not applicable']} |",
        "",
        f"{on_cpu} of the tests that passed are written for GPUs (column *GPU*), and ran on CPU tensors in place of CUDA tensors.",
        "torch's list of backends for each test is not applied: it admits gloo, nccl, ucc and mpi only.",
        "The tests of FSDP2 and of attention are not in torch's package. Their behavior is tested by `tests/python/fully_shard/test_fsdp2.py`",
        "and `tests/python/context_parallel`, see [below](#attention).",
        "",
        "| test | GPU | result |",
        "|---|---|---|",
    ]
    for name, result in results.items():
        text = f": {result.text}" if result.outcome == "not applicable" else ""
        lines.append(f"| `{name}` | {'yes' if result.for_gpus else ''} | {result.outcome}{text} |")
    return "\n".join(lines) + "\n" + attention_suite.section()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backend", default="weft")
    parser.add_argument("--only", default="", help="a regular expression that the names of the tests contain")
    parser.add_argument("--table", type=Path, help="the file for the table, in Markdown")
    options = parser.parse_args()
    runner = SuiteRunner(options.ranks, options.backend)
    names = [name for name in runner.conditions if re.search(options.only, name)]
    if not names:
        parser.error(f"no test has a name that contains {options.only!r}")
    results: dict[str, Result] = {}
    for name in names:
        result = results[name] = runner.run(name)
        print(f"{result.outcome:14} {name}", flush=True)
        if result.outcome == "failed":
            print(result.text, flush=True)
    runner.close()
    if options.table:
        options.table.write_text(table_of(results, options.ranks, options.backend))
    counts = Counter(result.outcome for result in results.values())
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
