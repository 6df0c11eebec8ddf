"""The faults of single ranks, with the exit code and the message that each must give."""
import os
import pathlib
import random
import signal
import sys

from fault_run import DEADLINE_S, ONCE, Case

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import model_folder


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
            right = died.get(what) or ((1,) if what == "exit0" else (86,))
            text = late if right == (86,) else ""
            if what == "exit0" and call == "MPI_Init_thread":
                # The launcher ends the run if other ranks have been in MPI_Init by then. Otherwise they wait for the rank.
                right, text = (1, 86), f"{late}|mpirun has exited due to process rank"
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
    yield Case("all ranks are paused for longer than the deadline", (0,), "weights xxh64:", ["--steps", "2000"],
               send=(3, (signal.SIGSTOP, signal.SIGCONT), "ranks"), send_gap_s=2 * DEADLINE_S)
    yield Case("a read fails on one rank, while another is stopped", (86,), r"Input/output error; then .* rank 2 did not arrive", ["--steps", "1000000"],
               ranks=3, fault="EIO@read:60", fault_path="text.txt", weft="./weft-of-rank", prepare=write_stop_of_rank_2,
               leaves=("weft-of-rank",))
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
    yield Case("a rank is slow, within the deadline", (0,), "rank 1: slept before operation 3", faulty_rank=("all_reduce", "slow"), ranks=3,
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
    yield Case("ulimit -v", (1,), r"memory.*ulimit -v", ["--steps", "2"], limit="-v 300000")
    yield Case("ulimit -n", (1,), "Too many open files", ["--steps", "2"], limit="-n 10")
    yield Case("ulimit -f", (1, 3), "File too large|ulimit|limit", ["--steps", "2", "--export-hf", "out"], limit="-f 16")

    large = ["--steps", "2", "--layers", "8", "--dim", "512", "--heads", "8", "--ffn-dim", "1408"]
    yield Case("a /dev/shm of 64 MB", (1,), r"/dev/shm limits it: .*--shm-size", large, shm="64m", sample=True)
    yield Case("a /dev/shm of 8 MB", (0,), "weights xxh64:", ["--steps", "2"], shm="8m")
    yield Case("a /dev/shm of 1 MB", (1,), r"/dev/shm limits it: .*--shm-size", ["--steps", "2"], shm="1m")

    huge = ["--steps", "2", "--layers", "8", "--dim", "1024", "--heads", "8", "--ffn-dim", "2816"]
    yield Case("a control group of 1 GB for a model of 1.6 GB", (1,), r"the 2 ranks of a node need 1\.\d GiB, but may take only",
               huge, memory=str(1 << 30), sample=True)

    # Links between hosts.
    # TCP sends lost data again 6.2 or 12.6 s after the first time, so the deadline must be longer.
    for name, transport in (("sockets", "tcp"), ("MPI", "mpi")):
        yield Case(f"the link between two hosts is cut for 5 s, over {name}", (0,), r"weights xxh64", ["--steps", "2000"],
                   launch=ONCE, cut="5", transport=transport, deadline_s=30)
        yield Case(f"the link between two hosts is cut for good, over {name}", (86,), r"rank\(s\) [01]|no heartbeat",
                   ["--steps", "1000000"], launch=ONCE, cut="ever", transport=transport)

    # Ranks that were started with different flags.
    yield Case("ranks with different flags", (2,), "--lr is", ["--steps", "5"], weft="./weft-of-rank", prepare=write_wrapper, sample=True,
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


def write_wrapper(folder, rank=1, change='set -- "$@" --lr 0.5'):
    """A program that gives one rank another learning rate, or another change."""
    script = folder / "weft-of-rank"
    script.write_text(f'#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = {rank} ] && {change}\nexec "$WEFT" "$@"\n')
    script.chmod(0o755)


def write_stop_of_rank_2(folder):
    write_wrapper(folder, rank=2, change="unset FAULT_FIRED && export FAULT=stop@read:60 FAULT_RANK=2")
