"""The peers: installed from PyPI into a separate virtual environment; their programs are built against it."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from suite.contestants import Command, CommandMaker
from suite.launch import KEEP_FREED_MEMORY, ONE_THREAD, PEERS, REPOSITORY
from suite.progress import log

TORCH = "torch==2.13.0"
WEFT_PACKAGE = "weft's Python package"


@dataclass
class Peers:
    """The installed peers. `missing` gives the reason for each peer that could not be installed."""

    folder: Path
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def intel_mpi(self, program: str, ranks: int) -> CommandMaker:
        """Starts a program under Intel MPI's own launcher. Ranks are not pinned, because they may outnumber the cores."""
        root = self.folder / "venv"
        environment = {
            **KEEP_FREED_MEMORY,
            **ONE_THREAD,
            "I_MPI_ROOT": str(root),
            "FI_PROVIDER_PATH": str(root / "lib"),
            "I_MPI_PIN": "0",
            "CCL_ROOT": str(root),
            "LD_LIBRARY_PATH": str(root / "lib"),
            # No worker threads: they would compete with the ranks for cores. This is ten times as fast if there are as many ranks
            # as cores.
            "CCL_WORKER_OFFLOAD": "0",
            "CCL_ATL_SHM": "1",
        }
        command = (str(root / "bin" / "mpiexec.hydra"), "-n", str(ranks), str(self.folder / program))
        return lambda _: Command([command], environment)

    def versions(self) -> dict[str, str]:
        installed = self.installed()
        return {name: installed[name] for name in ("torch", "impi-rt", "oneccl", "numpy", "matplotlib") if name in installed}

    def installed(self) -> dict[str, str]:
        """The versions of all packages of the environment. None if it could not be made, or has no pip."""
        try:
            listed = _run(str(self.python), "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
        except (OSError, subprocess.CalledProcessError):
            return {}
        return dict(line.split("==", 1) for line in listed.splitlines() if "==" in line)


def prepare(folder: Path, *, with_weft_package: bool) -> Peers:
    """Installs and builds the peers that are missing. `with_weft_package`: also weft's package, which takes minutes to build."""
    peers = Peers(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Callable[[], None]] = {
        "PyTorch": lambda: _install(peers, TORCH, "numpy"),
        WEFT_PACKAGE: lambda: _install(peers, str(REPOSITORY)),
        "plots": lambda: _install(peers, "matplotlib"),
        "Intel MPI": lambda: _build(peers, "intel_mpi", "mpi_collectives.cc", "impi-devel", ["-lmpi"]),
        "oneCCL": lambda: _build(peers, "oneccl", "oneccl_collectives.cc", "oneccl-devel", ["-lccl", "-lmpi"]),
    }
    if not with_weft_package:
        del parts[WEFT_PACKAGE]
    for name, prepare_one in parts.items():
        log(f"  {name}")
        try:
            _make_environment(peers)
            prepare_one()
        except (subprocess.CalledProcessError, OSError) as error:
            output = getattr(error, "stderr", None) or getattr(error, "stdout", None) or str(error)
            peers.missing[name] = f"{name} cannot be installed: {str(output)[-1000:]}"
            log(f"    {peers.missing[name]}")
    return peers


def _make_environment(peers: Peers) -> None:
    if not (peers.folder / "venv" / "bin" / "pip").exists():  # Missing at first, or after a failed attempt.
        venv.create(peers.folder / "venv", with_pip=True)


def _install(peers: Peers, *packages: str) -> None:
    _run(str(peers.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)


def _build(peers: Peers, program: str, source: str, package: str, libraries: Sequence[str]) -> None:
    """Builds a program, unless it is there and everything that goes into it is as it was."""
    _install(peers, package)
    root = peers.folder / "venv"
    sources = [str(PEERS / source), str(PEERS / "peer_collectives.cc")]
    sources += [str(REPOSITORY / "bench" / name) for name in ("contestant.cc", "host_barrier.cc", "mpi_baseline.cc")]
    target = peers.folder / program
    compile_all = ["g++", "-std=c++20", "-O2", f"-I{REPOSITORY}", "-isystem", str(root / "include"), *sources]
    link = [f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}", "-Wl,--allow-shlib-undefined", *libraries]
    command = [*compile_all, "-o", str(target), *link]
    text = _run(*compile_all, "-E")  # With all headers.
    packages = ("impi", package.removesuffix("-devel"))  # Every peer of this kind runs under Intel MPI.
    versions = [f"{name} {version}" for name, version in sorted(peers.installed().items()) if name.startswith(packages)]
    inputs = "\n".join([shlex.join(command), *versions, hashlib.sha256(text.encode()).hexdigest()])
    stamp = target.with_name(f"{program}.inputs")
    if target.exists() and stamp.exists() and stamp.read_text() == inputs:
        return
    _run(*command)
    stamp.write_text(inputs)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
