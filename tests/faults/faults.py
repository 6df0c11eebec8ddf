#!/usr/bin/env python3
"""Faults of single ranks: each run must end in time, with its exit code, a message that names the cause, and nothing left.

    faults.py WEFT FAULTY_RANK SHIM MPIRUN [--sample] [--jobs N] [--table FILE] [--list] [--stops N] [NAME...]

Without names: all cases, or with --sample those that tools/test.sh runs. A NAME selects the cases whose names contain it.
--jobs runs N cases at a time: most of the time of a case is a wait for a deadline. --table appends the results to a file as a
Markdown table. --stops starts N runs, sends SIGTERM to each at a random instant, and counts the exit codes. Exit code: 0 if every case
behaved as expected.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import model_folder

DEADLINE_S = 6  # WEFT_TIMEOUT_S, unless a case sets another.
STARTUP_S = 12  # WEFT_STARTUP_TIMEOUT_S.
CASE_TIMEOUT_S = 120  # A run that takes longer counts as hanging.
REPEATS = 2  # Of a case in which mpirun itself failed.
TAG = "WEFT_FAULT_CASE"  # Environment variable that marks the processes of a case.
MODEL = ["--layers", "2", "--dim", "32", "--heads", "2", "--ffn-dim", "48", "--seq-len", "32"]  # Later flags override these.
ONCE = ("--max-restarts", "0")  # Flags of weft launch.
DUMPS = [f"weft-dump/rank-{rank}.json" for rank in range(8)]


@dataclasses.dataclass
class Case:
    name: str
    codes: tuple  # Expected exit codes of mpirun or weft launch.
    message: str  # Regular expression that the output must match.
    flags: list = dataclasses.field(default_factory=list)  # Flags of weft train.
    faulty_rank: tuple = ()  # Operation and fault of the program faulty_rank, which replaces weft train.
    ranks: int = 2
    fault: str = ""  # Fault of the shim, as in fault_shim.c.
    fault_rank: int = 1
    fault_path: str = "/"
    seconds: float = 0  # FAULT_SECONDS.
    limit: str = ""  # A ulimit of all ranks.
    shm: str = ""  # Size of /dev/shm.
    memory: str = ""  # Limit of a control group, in bytes.
    read_only: str = ""  # A folder that is mounted read-only.
    deadline_s: int = DEADLINE_S  # WEFT_TIMEOUT_S.
    cut: str = ""  # The time for which the link between two hosts is cut, as in cut_link.sh.
    launch: tuple = ()  # Flags of weft launch, which replaces mpirun.
    send: tuple = ()  # (step before the signal, signal or signals, "rank N", "ranks" or "launch").
    start_signal: tuple = ()  # (seconds after the start, signal, rank).
    prepare: object = None  # Called with the folder before the run.
    leaves: tuple = ()  # Patterns of further files that may remain.
    without_sizes: bool = False  # Of MODEL, passes --seq-len only, because the model comes from a folder.
    sample: bool = False
    stop_after: float = None  # Seconds after which the launch gets SIGTERM.


def write_text(folder):
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 200)


def cases():
    died = {"kill": (137,), "segv": (139,), "exit1": (1,)}  # The launcher passes these on.
    late = r"rank\(s\) 1|ranks? 1|no progress|has not finished"
    yield Case("no fault", (0,), r"weights xxh64:", sample=True)

    # A rank ends, stops or hangs, in each phase.
    for what in ("kill", "segv", "stop", "exit0", "exit1", "hang"):
        for phase, call, flags in (
                ("before MPI_Init", "MPI_Init_thread", []), ("in a step", "dnnl_sgemm:200", []),
                ("in a step with sequences split", "dnnl_sgemm:200", ["--cp", "2"]),
                ("in evaluation", "dnnl_sgemm:60", ["--steps", "1", "--eval-data", "eval.txt"]),
                ("in MPI_Finalize", "MPI_Finalize", ["--steps", "3"])):
            # A rank that exits with 0 before MPI_Init has not failed for the launcher: its peers wait for it.
            right = died.get(what) or ((1,) if what == "exit0" and call != "MPI_Init_thread" else (86,))
            text = late if right == (86,) else ""
            yield Case(f"{what} {phase}", right, text, flags or ["--steps", "1000000"], fault=f"{what}@{call}",
                       prepare=write_eval, sample=(what, phase) in (("stop", "before MPI_Init"), ("kill", "in a step"),
                                                                    ("stop", "in MPI_Finalize"), ("hang", "in a step")))
        right = died.get(what) or ((1,) if what == "exit0" else (86,))
        yield Case(f"{what} in export", right, late if right == (86,) else "",
                   ["--steps", "2", "--export-hf", "out"], fault=f"{what}@write", fault_path="out", leaves=("out*", ".out.weft-*", ".out.weft-*/*"))
    yield Case("a read of data hangs, another rank goes on", (86,), late, ["--steps", "1000000"], fault="hang@read:40",
               fault_path="text.txt", sample=True)
    yield Case("a read of data hangs at the start", (86,), late, ["--steps", "1000000"], fault="hang@read:1",
               fault_path="text.txt")
    for phase, call, flags in (("before MPI_Init", "MPI_Init_thread", ["--steps", "3"]), ("in a step", "dnnl_sgemm:200", ["--steps", "20"]),
                               ("in evaluation", "dnnl_sgemm:60", ["--steps", "1", "--eval-data", "eval.txt"]),
                               ("in MPI_Finalize", "MPI_Finalize", ["--steps", "3"])):
        yield Case(f"a rank is slow {phase}, within the deadline", (0,), "weights xxh64:", flags, fault=f"slow@{call}",
                   seconds=DEADLINE_S / 2, prepare=write_eval, sample=phase == "in a step")
    yield Case("a read fails on one rank, while another is stopped", (3, 86), r"Input/output error|rank", ["--steps", "1000000"],
               ranks=3, fault="EIO@read:200", fault_path="text.txt", send=(3, signal.SIGSTOP, "rank 2"))
    for operation in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        for what in ("kill", "segv", "exit1"):
            yield Case(f"{what} in {operation}", died[what], "", faulty_rank=(operation, what), ranks=3)
        yield Case(f"exit0 in {operation}", (1,), "", faulty_rank=(operation, "exit0"), ranks=3)
        yield Case(f"stop in {operation}", (86,), r"rank\(s\) 1|ranks? 1", faulty_rank=(operation, "stop"), ranks=3,
                   sample=operation == "reduce_scatter")
        yield Case(f"skipped {operation}", (86,), f"rank 1 destroyed its engine before it submitted {operation}", faulty_rank=(operation, "skip"), ranks=3,
                   sample=operation == "all_gather")
        for what in ("count", "dtype", "order"):
            difference = "a part of shape" if (what, operation) == ("count", "all_to_all") else r"rank \d submitted .*, rank \d submitted"
            yield Case(f"another {what} in {operation}", (1,), difference, faulty_rank=(operation, what),
                       ranks=3, sample=(operation, what) == ("all_reduce", "dtype"))
        yield Case(f"dropped {operation} after an error", (3,), "rank 1: the batch cannot be read", faulty_rank=(operation, "drop"),
                   ranks=3)
    for operation in ("reduce_scatter", "all_reduce"):
        yield Case(f"another reduction in {operation}", (1,), "by average", faulty_rank=(operation, "reduce"), ranks=3)
    yield Case("a rank is slow, within the deadline", (0,), "", faulty_rank=("all_reduce", "slow"), ranks=3,
               seconds=DEADLINE_S / 2)
    yield Case("a rank is slow, beyond the deadline", (86,), r"rank\(s\) 1", faulty_rank=("all_reduce", "slow"), ranks=3,
               seconds=DEADLINE_S * 4)

    yield Case("a rank pauses beyond the deadline, and the engine is reset", (0,), "operation 3 after a reset",
               faulty_rank=("all_reduce", "pause"), ranks=3, seconds=DEADLINE_S + 4, sample=True)

    # Signals from outside.
    for instant in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0):
        for number in (signal.SIGKILL, signal.SIGSTOP):
            codes = died["kill"] if number == signal.SIGKILL else (86,)
            yield Case(f"{number.name} {instant} s after the start", codes, "", ["--steps", "1000000"],
                       start_signal=(instant, number, 1))
    yield Case("Ctrl-C", (130,), "", ["--steps", "1000000"], launch=ONCE, send=(3, signal.SIGINT, "launch"), sample=True)
    yield Case("Ctrl-C twice", (130,), "", ["--steps", "1000000"], launch=ONCE, send=(3, (signal.SIGINT, signal.SIGINT), "launch"))
    yield Case("SIGTERM to every rank", (130,), "stopped by a signal", ["--steps", "1000000"], send=(3, signal.SIGTERM, "ranks"))

    # Numbers.
    yield Case("NaN on one rank", (4,), r"step \d+: the loss is", ["--steps", "1000000"], fault="nan@dnnl_sgemm:100", sample=True)
    yield Case("NaN on one rank, one skip allowed", (0,), r"step \d+ skipped", ["--steps", "60", "--max-skipped-steps", "1"],
               fault="nan@dnnl_sgemm:100")

    # Files.
    for call in ("open", "write", "fsync", "rename", "truncate", "close"):
        for what in ("EIO", "ENOSPC"):
            for rank in (0, 1):
                if rank == 1 and call in ("rename", "truncate"):
                    continue  # Rank 0 does these.
                yield Case(f"{what} at {call} of the export, rank {rank}", (1, 3), r"weft: .*(out|weft)",
                           ["--steps", "2", "--export-hf", "out"], fault=f"{what}@{call}", fault_path="out", fault_rank=rank,
                           sample=(what, call, rank) == ("ENOSPC", "write", 1))
    yield Case("short writes of the export", (0,), "exported to out", ["--steps", "2", "--export-hf", "out"], fault="short@write",
               fault_path="out", leaves=("out", "out/*"))
    for what in ("EIO", "ENOSPC"):
        yield Case(f"{what} at write of the metrics", (1, 3), "m.jsonl", ["--steps", "5", "--metrics", "m.jsonl"],
                   fault=f"{what}@write:2", fault_path="m.jsonl", fault_rank=0, leaves=("m.*",))
    yield Case("EIO at read of the data", (1, 3), "text.txt", ["--steps", "1000000"], fault="EIO@read:60", fault_path="text.txt")
    yield Case("missing data", (3,), "none.txt", ["--data", "none.txt"])
    yield Case("a FIFO as data", (2, 3), "fifo", ["--data", "fifo"], prepare=lambda folder: os.mkfifo(folder / "fifo"),
               leaves=("fifo",), sample=True)
    for what, flags, message in (("export", ["--export-hf", "fixed/out"], "cannot create the folder"),
                                 ("export into an existing folder", ["--export-hf", "fixed"], "cannot write to the folder"),
                                 ("metrics", ["--metrics", "fixed/m.jsonl"], "(?:cannot open|cannot write)"),
                                 ("checkpoints", ["--checkpoint-dir", "fixed/ck"], "cannot create the folder")):
        yield Case(f"{what} on a read-only file system", (3,), f"{message} .*fixed.*: Read-only file system", ["--steps", "2", *flags],
                   prepare=lambda folder: (folder / "fixed").mkdir(), read_only="fixed", sample=what == "metrics")
    yield Case("flight recorders on a read-only file system", (86,), "no flight recorder: cannot write .*: Read-only file system",
               ["--steps", "1000000", "--dump-folder", "fixed/dump"], fault="hang@dnnl_sgemm:200",
               prepare=lambda folder: (folder / "fixed").mkdir(), read_only="fixed")
    yield from model_cases()
    yield Case("output in a folder that cannot be written", (1, 2, 3), "weft: .*proc", ["--steps", "2", "--export-hf", "/proc/x"])

    # Limits.
    yield Case("ulimit -v", (0, 1, 86), "", ["--steps", "2"], limit="-v 3000000")
    yield Case("ulimit -n", (0, 1, 3, 86), "", ["--steps", "2"], limit="-n 40")
    yield Case("ulimit -f", (1, 3), "File too large|ulimit|limit", ["--steps", "2", "--export-hf", "out"], limit="-f 16")

    large = ["--steps", "2", "--layers", "8", "--dim", "512", "--heads", "8", "--ffn-dim", "1408"]
    yield Case("a /dev/shm of 64 MB", (1,), r"/dev/shm limits it: .*--shm-size", large, shm="64m", sample=True)
    yield Case("a /dev/shm of 1 MB", (1,), r"/dev/shm limits it: .*--shm-size", ["--steps", "2"], shm="1m")

    huge = ["--steps", "2", "--layers", "8", "--dim", "1024", "--heads", "8", "--ffn-dim", "2816"]
    yield Case("a control group of 1 GB for a model of 1.6 GB", (1, 77), r"the 2 ranks of this node need at least 1\.\d GiB, but only|skipped:",
               huge, memory=str(1 << 30), sample=True)

    # Links between hosts.
    # TCP sends lost data again 6.2 or 12.6 s after the first time, so the deadline must be longer.
    yield Case("the link between two hosts is cut for 5 s", (0, 77), r"weights xxh64|skipped", ["--steps", "2000"], launch=ONCE, cut="5",
               deadline_s=30)
    yield Case("the link between two hosts is cut for good", (86, 77), r"rank\(s\) [01]|no heartbeat|skipped", ["--steps", "1000000"],
               launch=ONCE, cut="ever")

    # Ranks that were started with different flags.
    yield Case("ranks with different flags", (2,), "--lr is", ["--steps", "5"], prepare=write_wrapper, sample=True,
               leaves=("weft-of-rank",))


def model_cases():
    """Model folders that are damaged, or do not fit together, on all ranks."""
    flags = ["--hf-model", "model", "--steps", "2"]

    def case(name, change, codes=(3,), message="", files=2, sample=False):
        def prepare(folder):
            model_folder.write(folder / "model", files=files)
            change(folder / "model")

        return Case(f"a model folder: {name}", codes, message, flags, prepare=prepare, without_sizes=True, sample=sample)

    def with_tensors(change):
        """Rewrites the file of the weights with other tensors."""
        def rewrite(folder):
            tensors = model_folder.shapes(model_folder.CONFIG)
            change(tensors)
            (folder / "model.safetensors").write_bytes(model_folder.safetensors(tensors))

        return rewrite

    def swap_index(folder):
        """The index of a run with three layers."""
        other = model_folder.write(folder.parent / "model-of-another-run", model_folder.CONFIG | {"num_hidden_layers": 3}, files=2)
        (other / "model.safetensors.index.json").rename(folder / "model.safetensors.index.json")

    def cut(position):
        def truncate(folder):
            path = folder / "model.safetensors"
            raw = path.read_bytes()
            header = 8 + int.from_bytes(raw[:8], "little")
            path.write_bytes(raw[:{"in its length": 5, "before its header": 8, "in its header": header // 2, "after its header": header,
                                   "in its data": (header + len(raw)) // 2, "by its last byte": len(raw) - 1, "to nothing": 0}[position]])

        return truncate

    def flip(name, seed):
        def change(folder):
            path = folder / name
            raw = bytearray(path.read_bytes())
            end = 8 + int.from_bytes(raw[:8], "little") if name.endswith(".safetensors") else len(raw)
            bit = random.Random(seed).randrange(8 * end)
            raw[bit // 8] ^= 1 << bit % 8
            path.write_bytes(raw)

        return change

    def as_integers(folder):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"'))

    yield case("undamaged", lambda folder: None, (0,), "weights xxh64:")
    yield case("the index of another run", swap_index, message="index.json.*names|has no tensor|not in", sample=True)
    yield case("a wrong shape", with_tensors(lambda tensors: tensors.update({"model.norm.weight": [17]})), files=1,
               message=r"model\.norm\.weight.*17")
    yield case("a missing tensor", with_tensors(lambda tensors: tensors.pop("model.norm.weight")), files=1, message=r"model\.norm\.weight")
    yield case("a wrong dtype", as_integers, files=1, message="I32")
    for position in ("to nothing", "in its length", "before its header", "in its header", "after its header", "in its data", "by its last byte"):
        yield case(f"weights truncated {position}", cut(position), files=1, message=r"weft: .*model\.safetensors", sample=position == "in its data")
    for name in ("model.safetensors", "config.json", "model.safetensors.index.json"):
        files = 2 if "index" in name else 1
        for seed in range(5):
            # Harmless, or an error that names the file, a tensor of it, or a size that does not fit.
            yield case(f"bit {seed} flipped in {name}", flip(name, seed), (0, 2, 3), r"weights xxh64:|weft: .*(model|config\.json)", files=files)


def write_eval(folder):
    (folder / "eval.txt").write_text("a lazy dog sleeps " * 300)


def write_wrapper(folder):
    """A program that gives rank 1 another learning rate."""
    script = folder / "weft-of-rank"
    script.write_text('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && set -- "$@" --lr 0.5\nexec "$WEFT" "$@"\n')
    script.chmod(0o755)


def tagged_processes(tag):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"{TAG}={tag}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def rank_processes(tag):
    """Process ids by rank."""
    ranks = {}
    for pid in tagged_processes(tag):
        try:
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in environment:
            if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                ranks[int(variable.split(b"=")[1])] = pid
    return ranks


def shared_memory():
    return {path for path in pathlib.Path("/dev/shm").iterdir()}


def is_mapped(path):
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(path) in maps.read_text():
                return True
        except OSError:
            continue
    return False


class Run:
    def __init__(self, case, programs, folder):
        self.case, self.programs, self.folder = case, programs, folder
        self.tag = uuid.uuid4().hex
        self.output = folder.parent / (folder.name + ".out")
        self.ranks_hang = False

    def environment(self):
        case = self.case
        environment = os.environ | {
            TAG: self.tag, "OMP_NUM_THREADS": "1", "WEFT_TIMEOUT_S": str(case.deadline_s), "WEFT_STARTUP_TIMEOUT_S": str(STARTUP_S),
            "WEFT": self.programs["weft"]}
        if case.fault:
            environment |= {"FAULT": case.fault, "FAULT_RANK": str(case.fault_rank), "FAULT_PATH": case.fault_path}
        if case.seconds:
            environment["FAULT_SECONDS"] = str(case.seconds)
        return environment

    def command(self):
        case = self.case
        if case.faulty_rank:
            program = [self.programs["faulty_rank"], *case.faulty_rank, "1"]
        else:
            weft = "./weft-of-rank" if case.prepare is write_wrapper else self.programs["weft"]
            data = [] if "--data" in case.flags else ["--data", "text.txt"]
            sizes = MODEL[-2:] if case.without_sizes else MODEL
            program = [weft, "train", *sizes, *data, *case.flags]
        preload = ["env", f"LD_PRELOAD={self.programs['shim']}"] if case.fault else []
        limit = ["sh", "-c", f'ulimit {case.limit}; exec "$@"', "sh"] if case.limit else []
        if case.cut:
            tools = pathlib.Path(self.programs["mpirun"]).parent
            return [str(tools / "emulated_hosts.sh"), str(pathlib.Path(__file__).with_name("cut_link.sh")), case.cut,
                    program[0], *case.launch, "--", *program[1:]]
        if case.launch:
            return [*preload, program[0], "launch", "-n", str(case.ranks), "--oversubscribe", *case.launch, "--", *program[1:]]
        mounts = [f"mount -t tmpfs -o size={case.shm} tmpfs /dev/shm"] if case.shm else []
        if case.read_only:
            mounts += [f"mount --bind {case.read_only} {case.read_only}", f"mount -o remount,bind,ro {case.read_only}"]
        namespace = ["unshare", "--mount", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh"] if mounts else []
        launcher = [self.programs["mpirun"], "-n", str(case.ranks)] if self.programs["mpirun"] else []  # Without mpirun: one rank.
        group = [str(pathlib.Path(__file__).with_name("control_group.sh")), case.memory] if case.memory else []
        return [*group, *namespace, *launcher, *limit, *preload, *program]

    def deliver(self, process):
        """Sends the signals of the case."""
        case = self.case
        if case.stop_after is not None:
            time.sleep(case.stop_after)
            self.kill(process.pid, signal.SIGTERM)
        if case.start_signal:
            delay, number, rank = case.start_signal
            pid = None
            while pid is None and process.poll() is None:
                pid = rank_processes(self.tag).get(rank)
            time.sleep(delay)
            self.kill(pid, number)
        if case.send:
            step, numbers, target = case.send
            while process.poll() is None and f"step {step}/" not in self.output.read_text(errors="replace"):
                time.sleep(0.05)
            for number in numbers if isinstance(numbers, tuple) else (numbers,):
                if target == "launch":
                    self.kill(process.pid, number)
                elif target == "ranks":
                    for pid in rank_processes(self.tag).values():
                        self.kill(pid, number)
                else:
                    self.kill(rank_processes(self.tag).get(int(target.split()[1])), number)
                time.sleep(0.1)

    @staticmethod
    def kill(pid, number):
        try:
            if pid is not None:
                os.kill(pid, number)
        except ProcessLookupError:
            pass

    def execute(self):
        """(exit code or None, seconds, output, complaints)"""
        if not (self.folder / "text.txt").exists():
            write_text(self.folder)
        if self.case.prepare:
            self.case.prepare(self.folder)
        before = {path.name for path in self.folder.iterdir()}
        memory = shared_memory()
        start = time.monotonic()
        with open(self.output, "wb") as output:
            process = subprocess.Popen(self.command(), cwd=self.folder, env=self.environment(), stdout=output,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            self.deliver(process)
            try:
                code = process.wait(timeout=2 * CASE_TIMEOUT_S if self.case.cut else CASE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = None
                self.ranks_hang = bool(rank_processes(self.tag))
        seconds = time.monotonic() - start
        complaints = self.leftovers(before, memory)
        output = self.output.read_text(errors="replace")
        if self.case.cut:
            complaints += re.findall(r"^left .*$", output, re.MULTILINE)
        return code, seconds, output, complaints

    def leftovers(self, before, memory):
        def left_memory():
            return {path for path in shared_memory() - memory if not is_mapped(path)}

        # mpirun's helpers end shortly after it.
        complaints = []
        end = time.monotonic() + 5
        while tagged_processes(self.tag) and time.monotonic() < end:
            time.sleep(0.1)
        if left := tagged_processes(self.tag):
            complaints.append(f"{len(left)} processes are left")
            for pid in left:
                self.kill(pid, signal.SIGKILL)
        # A rank of another case that ends before its mpirun leaves memory that nobody maps until mpirun ends. Memory of this case
        # that is left stays for longer than any case runs.
        left = left_memory()
        end = time.monotonic() + CASE_TIMEOUT_S
        while left and time.monotonic() < end:
            time.sleep(0.1)
            left &= left_memory()
        if left:
            complaints.append(f"shared memory is left: {', '.join(sorted(path.name for path in left)[:3])}")
        allowed = (*DUMPS, "weft-dump", "core*", *self.case.leaves)
        for name in self.left_names():
            if name.split("/")[0] in before or any(pathlib.PurePath(name).match(pattern) for pattern in allowed):
                continue
            complaints.append(f"a file is left: {name}")
        return complaints

    def left_names(self):
        """The names of files and folders in the case's folder. Another run may remove some meanwhile: os.walk passes over a folder that is gone."""
        return sorted(os.path.relpath(os.path.join(folder, name), self.folder)
                      for folder, folders, files in os.walk(self.folder) for name in folders + files)


def judge(case, code, output, complaints):
    problems = list(complaints)
    if code is None:
        return [f"hangs: no end after {CASE_TIMEOUT_S} s", *problems]
    if code not in case.codes:
        problems.append(f"exit code {code}, expected one of {case.codes}")
    if not re.search(case.message, output):
        problems.append(f"no message like '{case.message}'")
    return problems


def mpirun_failed(run, code, output):
    """True if a rank has ended as expected, and mpirun, which said so, then crashed or did not end. Open MPI has such defects."""
    ended = {int(number) for number in re.findall(r"^\s*Exit code: +(\d+)", output, re.MULTILINE)}
    failed = code in (-signal.SIGSEGV, -signal.SIGABRT) or (code is None and not run.ranks_hang)
    return failed and not run.case.launch and bool(ended & set(run.case.codes))


def message_of(output):
    """The line of the output that names the cause."""
    lines = [line.strip() for line in output.splitlines()]
    own = [line for line in lines if line.startswith("weft: ")]
    launcher = [line for line in lines if re.search(r"exited on signal|without calling|Exit code", line)]
    found = own or ["mpirun: " + line for line in launcher] or [""]
    return re.sub(r"(?<![\w.-])/\S*/", "", found[0])[:160].replace("|", "/")


def stop_at_random_instants(count, programs):
    """Exit code 0 if every stopped run ended by 130."""
    draw = random.Random(count)
    case = Case("stopped", (), "", ["--steps", "1000000"], launch=ONCE)
    codes, complaints = collections.Counter(), []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as parent:
            folder = pathlib.Path(parent) / "run"
            folder.mkdir()
            run = Run(dataclasses.replace(case, stop_after=draw.uniform(0, 2)), programs, folder)
            code, _, output, left = run.execute()
            codes[code] += 1
            complaints += left
            if code != 130:
                print(f"exit {code}: {output.splitlines()[-3:]}", flush=True)
    print(f"{count} runs stopped by SIGTERM: " + ", ".join(f"{number} exited with {code}" for code, number in sorted(codes.items())))
    print(*complaints, sep="\n")
    return 0 if set(codes) <= {130} and not complaints else 1


def run_case(case, programs):
    """(exit code or None, seconds, output, problems)"""
    for repeat in range(REPEATS + 1):
        with tempfile.TemporaryDirectory() as parent:
            folder = pathlib.Path(parent) / "run"
            folder.mkdir()
            run = Run(case, programs, folder)
            code, seconds, output, complaints = run.execute()
        if repeat == REPEATS or not mpirun_failed(run, code, output):
            break
        print(f"repeated: mpirun {'did not end' if code is None else f'ended by signal {-code}'} after a rank had ended: {case.name}", flush=True)
    return code, seconds, output, judge(case, code, output, complaints)


def reset_signals():
    """Under nohup, SIGHUP is ignored, and so it would be in the programs under test."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def main():
    reset_signals()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("weft", "faulty_rank", "shim", "mpirun"):
        parser.add_argument(name, type=os.path.abspath)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--stops", type=int, metavar="N")
    arguments = parser.parse_intermixed_args()
    if arguments.stops:
        return stop_at_random_instants(arguments.stops, vars(arguments))
    chosen = [case for case in cases()
              if (case.sample or not arguments.sample) and (not arguments.names or any(n in case.name for n in arguments.names))]
    if arguments.list:
        print("\n".join(case.name for case in chosen))
        return 0
    rows, failures = [], []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(lambda case: run_case(case, vars(arguments)), chosen)
        for case, (code, seconds, output, problems) in zip(chosen, results, strict=True):
            print(f"{'FAILED' if problems else 'ok':6}  {seconds:6.1f} s  exit {code}  {case.name}", flush=True)
            if problems:
                failures.append("\n        ".join([case.name, *problems, *output.splitlines()[-12:]]))
            rows.append(f"| {case.name} | {case.ranks} | {seconds:.1f} | {code} | {message_of(output)} |")
    if arguments.table:
        header = ["| fault | ranks | seconds | exit code | message |", "|---|---|---|---|---|"]
        with open(arguments.table, "a") as table:
            table.write("\n".join([*header, *rows]) + "\n\n")
    print(*failures, f"{len(chosen) - len(failures)} passed, {len(failures)} failed", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
