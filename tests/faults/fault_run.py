"""A run of weft train, or of the program faulty_rank, with a fault: its exit code, its output, and what it leaves behind."""
import dataclasses
import functools
import os
import pathlib
import re
import signal
import subprocess
import time
import uuid

DEADLINE_S = 6  # WEFT_TIMEOUT_S, unless a case sets another.
STARTUP_S = 12  # WEFT_STARTUP_TIMEOUT_S, unless a case sets another.
CASE_TIMEOUT_S = 120  # A run that takes longer counts as hanging.
TAG = "WEFT_FAULT_CASE"  # Environment variable that marks the processes of a case.
MODEL = ["--layers", "2", "--dim", "32", "--heads", "2", "--ffn-dim", "48", "--seq-len", "32"]  # Later flags override these.
SKIPPED = 77  # Exit code of a case that this system does not allow. Its output says why.
CANNOT_MOUNT = "skipped: mounting a file system needs root"
NOT_FIRED = "the fault has not happened"
ONCE = ("--max-restarts", "0")  # Flags of weft launch.
DUMPS = [f"weft-dump/rank-{rank}.json{age}" for rank in range(8) for age in ("", ".old")]


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
    startup_s: int = STARTUP_S  # WEFT_STARTUP_TIMEOUT_S.
    cut: str = ""  # The time for which the link between two hosts is cut, as in cut_link.sh.
    transport: str = "auto"  # WEFT_TRANSPORT.
    stop_remote: str = ""  # The time after which a launch with ranks on other hosts only is stopped, as in remote_ranks.sh.
    launch: tuple = ()  # Flags of weft launch, which replaces mpirun.
    send: tuple = ()  # (step before the signal, signal or signals, "rank N", "ranks" or "launch").
    send_gap_s: float = 0.1  # Seconds after each of the signals.
    start_signal: tuple = ()  # (seconds after the start, signal, rank).
    weft: str = ""  # A program in the case's folder that replaces weft.
    prepare: object = None  # Called with the folder before the run.
    leaves: tuple = ()  # Patterns of further files that may remain.
    without_sizes: bool = False  # Of MODEL, passes --seq-len only, because the model comes from a folder.
    sample: bool = False
    stop_after: float = None  # Seconds after which the launch gets SIGTERM.


def write_text(folder):
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 200)


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


def left_processes(tag):
    """The processes of a case that are left after it. Helpers of mpirun end shortly after it."""
    end = time.monotonic() + 30
    while tagged_processes(tag) and time.monotonic() < end:
        time.sleep(0.1)
    return tagged_processes(tag)


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


def wait_until(done, process, end):
    """Waits until done() is true. False if the process has ended without it, or the deadline (of time.monotonic) has passed."""
    while not done():
        if process.poll() is not None or time.monotonic() >= end:
            return False
        time.sleep(0.02)
    return True


@functools.cache
def can_mount():
    return subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def is_probe(path):
    """True for the empty file that Open MPI makes and removes at the start of a process, to see whether it may. One that is killed
    in between leaves it."""
    try:
        return re.fullmatch(r"open_mpi\.\d{4}", path.name) is not None and path.stat().st_size == 0
    except FileNotFoundError:
        return False


def shared_memory():
    return {path for path in pathlib.Path("/dev/shm").iterdir() if not is_probe(path)}


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
        self.fired = folder.parent / (folder.name + ".fired")  # Exists once the fault of the shim has happened.
        self.ranks_hang = False
        self.end = None  # Of time.monotonic, from the start of the run.

    def environment(self):
        case = self.case
        environment = os.environ | {
            TAG: self.tag, "OMP_NUM_THREADS": "1", "WEFT_TIMEOUT_S": str(case.deadline_s), "WEFT_STARTUP_TIMEOUT_S": str(case.startup_s),
            "WEFT_TRANSPORT": case.transport,
            "WEFT": self.programs["weft"]}
        if case.fault:
            environment |= {"FAULT": case.fault, "FAULT_RANK": str(case.fault_rank), "FAULT_PATH": case.fault_path,
                            "FAULT_FIRED": str(self.fired)}
        if case.seconds:
            environment["FAULT_SECONDS"] = str(case.seconds)
        return environment

    def command(self):
        case = self.case
        if case.faulty_rank:
            program = [self.programs["faulty_rank"], *case.faulty_rank, "1"]
        else:
            weft = case.weft or self.programs["weft"]
            data = [] if "--data" in case.flags else ["--data", "text.txt"]
            sizes = MODEL[-2:] if case.without_sizes else MODEL
            program = [weft, "train", *sizes, *data, *case.flags]
        preload = ["env", f"LD_PRELOAD={self.programs['shim']}"] if case.fault else []
        limit = ["sh", "-c", f'ulimit {case.limit}; exec "$@"', "sh"] if case.limit else []
        if case.cut or case.stop_remote:
            hosts = [str(pathlib.Path(self.programs["mpirun"]).with_name("emulated_hosts.sh")), "--hosts", "2" if case.cut else "3"]
            script = pathlib.Path(__file__).with_name("cut_link.sh" if case.cut else "remote_ranks.sh")
            return [*hosts, str(script), case.cut or case.stop_remote, program[0], *case.launch, "--", *program[1:]]
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
            wait_until(lambda: rank in rank_processes(self.tag), process, self.end)
            time.sleep(delay)
            self.kill(rank_processes(self.tag).get(rank), number)
        if case.send:
            step, numbers, target = case.send
            wait_until(lambda: f"step {step}/" in self.output.read_text(errors="replace"), process, self.end)
            for number in numbers if isinstance(numbers, tuple) else (numbers,):
                if target == "launch":
                    self.kill(process.pid, number)
                elif target == "ranks":
                    for pid in rank_processes(self.tag).values():
                        self.kill(pid, number)
                else:
                    self.kill(rank_processes(self.tag).get(int(target.split()[1])), number)
                time.sleep(case.send_gap_s)

    @staticmethod
    def kill(pid, number):
        try:
            if pid is not None:
                os.kill(pid, number)
        except ProcessLookupError:
            pass

    def execute(self):
        """(exit code or None, seconds, output, complaints)"""
        if (self.case.shm or self.case.read_only) and not can_mount():
            return SKIPPED, 0, CANNOT_MOUNT, []
        if not (self.folder / "text.txt").exists():
            write_text(self.folder)
        if self.case.prepare:
            self.case.prepare(self.folder)
        before = {path.name for path in self.folder.iterdir()}
        self.fired.unlink(missing_ok=True)
        memory = shared_memory()
        start = time.monotonic()
        self.end = start + timeout_s(self.case)
        with open(self.output, "wb") as output:
            process = subprocess.Popen(self.command(), cwd=self.folder, env=self.environment(), stdout=output,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            self.deliver(process)
            try:
                code = process.wait(timeout=max(0, self.end - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = None
                self.ranks_hang = bool(rank_processes(self.tag))
        seconds = time.monotonic() - start
        complaints = self.leftovers(before, memory)
        output = self.output.read_text(errors="replace")
        if self.case.cut or self.case.stop_remote:
            complaints += re.findall(r"^left .*$", output, re.MULTILINE)
        if self.case.fault and not self.fired.exists() and not is_skipped(code, output):
            complaints.append(NOT_FIRED)
        return code, seconds, output, complaints

    def leftovers(self, before, memory):
        def left_memory():
            return {path for path in shared_memory() - memory if not is_mapped(path)}

        complaints = []
        if left := left_processes(self.tag):
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


def is_skipped(code, output):
    return code == SKIPPED and "skipped: " in output


def timeout_s(case):
    return 2 * CASE_TIMEOUT_S if case.cut else CASE_TIMEOUT_S


def judge(case, code, output, complaints):
    problems = list(complaints)
    if is_skipped(code, output):
        return problems
    if code is None:
        return [f"hangs: no end after {timeout_s(case)} s", *problems]
    if code not in case.codes:
        problems.append(f"exit code {code}, expected one of {case.codes}")
    if not re.search(case.message, output):
        problems.append(f"no message like '{case.message}'")
    return problems


def message_of(output):
    """The line of the output that names the cause."""
    lines = [line.strip() for line in output.splitlines()]
    own = [line for line in lines if re.match(r"weft: |(\w+: )?skipped: ", line)]
    launcher = [line for line in lines if re.search(r"exited on signal|without calling|Exit code", line)]
    found = own or ["mpirun: " + line for line in launcher] or [""]
    return re.sub(r"(?<![\w.-])/\S*/", "", found[0])[:160].replace("|", "/")


def reset_signals():
    """Under nohup, SIGHUP is ignored, and so it would be in the programs under test."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
