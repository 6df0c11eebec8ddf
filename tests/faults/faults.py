#!/usr/bin/env python3
"""Faults of single ranks: each run must end in time, with its exit code, a message that names the cause, and nothing left.

    faults.py WEFT FAULTY_RANK SHIM MPIRUN [--sample] [--jobs N] [--table FILE] [--list] [--stops N] [NAME...]

Without names: all cases, or with --sample those that tools/test.sh runs. A NAME selects the cases whose names contain it.
--jobs runs N cases at a time: most of the time of a case is a wait for a deadline. --table appends the results to a file as a
Markdown table. --stops starts N runs, sends SIGTERM to each at a random instant, and counts the exit codes. Exit code: 0 if every case
behaved as expected, or was skipped, as those that mount a file system without root; 5 if no case has such a name.
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
import sys
import tempfile

from fault_cases import cases
from fault_results import Results, report_no_case
from fault_run import ONCE, Case, Run, judge, reset_signals

REPEATS = 2  # Of a case in which mpirun itself failed.


def mpirun_failed(run, code, output):
    """True if a rank has ended as expected, and mpirun, which said so, then crashed or did not end. Open MPI has such defects."""
    ended = {int(number) for number in re.findall(r"^\s*Exit code: +(\d+)", output, re.MULTILINE)}
    failed = code in (-signal.SIGSEGV, -signal.SIGABRT) or (code is None and not run.ranks_hang)
    return failed and not run.case.launch and bool(ended & set(run.case.codes))


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
    if not chosen:
        return report_no_case(arguments.names)
    if arguments.list:
        print("\n".join(case.name for case in chosen))
        return 0
    report = Results(("ranks",))
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(lambda case: run_case(case, vars(arguments)), chosen)
        for case, (code, seconds, output, problems) in zip(chosen, results, strict=True):
            report.add(case.name, code, seconds, output, problems, (case.ranks,))
    return report.finish(arguments.table)


if __name__ == "__main__":
    sys.exit(main())
