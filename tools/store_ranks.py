#!/usr/bin/env python3
"""Starts a program on several ranks without MPI: they find each other through a folder.

    store_ranks.py -n RANKS [--ppn RANKS_PER_NODE] [--timeout SECONDS] PROGRAM [ARGUMENTS...]

Each rank gets RANK, WORLD_SIZE and LOCAL_RANK, as from torchrun, and WEFT_STORE, the folder of a file store, which is
removed at the end. With --ppn, ranks of different nodes have different names in WEFT_NODE_ID, so that they share no memory
and exchange messages. Inside of tools/emulated_hosts.sh, the nodes are its hosts.

If a rank fails, the others have ten seconds to end by themselves; then they are killed. So are all ranks at the timeout
(default 240 seconds), and if this script ends early. Exit code: that of the rank that failed first, 124 at the timeout.
"""
import argparse
import ctypes
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

GRACE_SECONDS = 10
TIMEOUT_CODE = 124
PR_SET_PDEATHSIG = 1


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-n", type=int, required=True, dest="ranks")
    parser.add_argument("--ppn", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=240)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="PROGRAM")
    arguments = parser.parse_args(argv)
    if arguments.ranks < 1 or not arguments.command:
        parser.error("give a number of ranks and a program")
    return arguments


def end_with_parent():
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(rank, arguments, hosts, store):
    """The process of one rank."""
    ppn = arguments.ppn or arguments.ranks
    environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(arguments.ranks), LOCAL_RANK=str(rank % ppn),
                       WEFT_STORE=str(store))
    command = arguments.command
    if hosts:
        command = [os.environ["WEFT_ON_HOST"], hosts[rank // ppn], shlex.join(command)]
    elif arguments.ppn:
        environment["WEFT_NODE_ID"] = f"node-{rank // ppn}"
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)


def wait(processes, seconds):
    """Waits for all processes. Returns the exit code of the first that failed, or 0."""
    end = time.monotonic() + seconds
    first = 0
    running = list(processes)
    while running:
        for process in list(running):
            code = process.poll()
            if code is None:
                continue
            running.remove(process)
            if code != 0 and first == 0:
                first = code if code > 0 else 128 - code
                print(f"store_ranks: rank {processes.index(process)} has ended with code {first}", file=sys.stderr)
                end = min(end, time.monotonic() + GRACE_SECONDS)
        if running and time.monotonic() > end:
            ranks = [processes.index(process) for process in running]
            print(f"store_ranks: killing the ranks that are still running: {ranks}", file=sys.stderr)
            return first or TIMEOUT_CODE
        time.sleep(0.01)
    return first


def kill(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def main(argv):
    arguments = parse(argv)
    hosts = os.environ.get("WEFT_HOSTS", "").split()
    ppn = arguments.ppn or arguments.ranks
    if hosts and arguments.ranks > ppn * len(hosts):
        sys.exit(f"store_ranks: {arguments.ranks} ranks do not fit on {len(hosts)} hosts with {ppn} each")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda code, frame: sys.exit(128 + code))
    store = pathlib.Path(tempfile.mkdtemp(prefix="weft-store-"))
    processes = []
    try:
        for rank in range(arguments.ranks):
            processes.append(start(rank, arguments, hosts, store))
        return wait(processes, arguments.timeout)
    except KeyboardInterrupt:
        return 130
    finally:
        kill(processes)
        shutil.rmtree(store, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
