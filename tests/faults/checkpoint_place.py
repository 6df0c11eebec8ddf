"""Folders with the data and the checkpoints of runs, and runs that go on from them, with a fault or without one."""
import dataclasses
import pathlib
import re
import shutil
import subprocess
import tempfile

import fault_run

CHECKPOINTS = "ck"
FLAGS = ["--batch-size", "2", "--checkpoint-dir", CHECKPOINTS, "--checkpoint-interval", "4", "--resume", "auto"]
LAST = 12
LONG = 2000
LONG_FLAGS = ["--checkpoint-interval", "200"]


@dataclasses.dataclass
class Outcome:
    code: int
    output: str
    seconds: float
    complaints: list


class Place:
    """A folder with the data and the checkpoints of a run, and the programs that work on it."""

    def __init__(self, programs, folder, ranks):
        self.programs, self.folder, self.ranks = programs, folder, ranks

    def train(self, steps=LAST, flags=(), ranks=None, **case):
        """Runs weft train. `case`: further fields of fault_run.Case."""
        ranks = ranks or self.ranks
        flags = ["--steps", str(steps), *FLAGS, *flags]
        run = fault_run.Run(fault_run.Case("", (), "", flags, ranks=ranks, **case), self.programs, self.folder)
        if ranks == 1:
            run.programs = self.programs | {"mpirun": None}
        code, seconds, output, complaints = run.execute()
        return Outcome(code, output, seconds, [c for c in complaints if not c.startswith("a file is left")])

    def checkpoint(self, *words):
        return subprocess.run([self.programs["weft"], "checkpoint", *words], cwd=self.folder, capture_output=True, text=True)

    def path(self, step, name=""):
        return self.folder / CHECKPOINTS / f"step-{step:08}" / name

    def remains(self):
        return [path.name for path in (self.folder / CHECKPOINTS).iterdir() if path.name.startswith(".")]


def hash_of(output):
    found = re.findall(r"weights xxh64:([0-9a-f]{16})", output)
    return found[-1] if found else None


class Harness:
    def __init__(self, programs):
        self.programs = programs
        self.parent = tempfile.TemporaryDirectory()
        self.templates = {}
        self.long_hashes = {}  # By number of ranks.

    def long_place(self, ranks):
        """A folder for a run of LONG steps, so long that a signal arrives before its end. Also sets long_hashes[ranks]."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.parent.name)) / "run"
        folder.mkdir()
        place = Place(self.programs, folder, ranks)
        if ranks not in self.long_hashes:
            undisturbed = place.train(steps=LONG, flags=LONG_FLAGS)
            assert undisturbed.code == 0, undisturbed.output
            self.long_hashes[ranks] = hash_of(undisturbed.output)
            shutil.rmtree(folder / CHECKPOINTS)
        return place

    def expected(self, ranks):
        """(the folder with the checkpoints of steps 4 and 8, the weights after the last step) of an undisturbed run."""
        if ranks not in self.templates:
            folder = pathlib.Path(self.parent.name) / f"template-{ranks}"
            folder.mkdir()
            place = Place(self.programs, folder, ranks)
            undisturbed = place.train()
            assert undisturbed.code == 0, undisturbed.output
            shutil.rmtree(place.path(LAST))
            (folder / CHECKPOINTS / "latest").write_text("step-00000008\n")
            self.templates[ranks] = (folder, hash_of(undisturbed.output))
        return self.templates[ranks]

    def place(self, ranks):
        template, _ = self.expected(ranks)
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.parent.name)) / "run"
        shutil.copytree(template, folder)
        return Place(self.programs, folder, ranks)

    def recovery_problems(self, place, flags=()):
        """The problems of the run that goes on without a fault."""
        problems = []
        remains = place.remains()
        recovered = place.train(flags=flags)
        if recovered.code != 0:
            problems.append(f"the next run ends with {recovered.code}: {fault_run.message_of(recovered.output)}")
        elif hash_of(recovered.output) != self.expected(place.ranks)[1]:
            problems.append("the next run ends with other weights")
        problems += [f"the next run does not name {name}" for name in remains if name not in recovered.output]
        problems += [f"the next run leaves {name}" for name in place.remains()]
        verified = place.checkpoint("verify", CHECKPOINTS)
        if verified.returncode != 0:
            problems.append(f"a checkpoint is damaged: {verified.stdout}")
        return problems
