#!/usr/bin/env python3
"""Tests how tools/faults.sh chooses cases by their names, and that a fault without an effect fails its case. No case runs."""
import re
import sys
import types
import unittest

from script_case import ROOT, ScriptCase

sys.path.insert(0, str(ROOT / "tests/faults"))
import checkpoint_faults
import fault_run
from checkpoint_place import Outcome


class Names(ScriptCase):
    scripts = ("tools/script_functions.sh", "tools/faults.sh")

    def setUp(self):
        super().setUp()
        (self.root / "tests").symlink_to(ROOT / "tests")
        self.program("bin/cmake", "")  # The build does nothing.

    def faults(self, *arguments):
        result = self.run_script("tools/faults.sh", *arguments)
        return result.returncode, result.stdout.splitlines()

    def test_may_belong_to_one_kind_only(self):
        for name in ("while another is stopped", "SIGTERM saves", "Ctrl-C under weft launch"):
            code, names = self.faults("--list", name)
            self.assertEqual(code, 0)
            self.assertTrue(names)
            self.assertTrue(all(name in found for found in names), names)

    def test_of_tables_are_relative_to_the_folder_of_the_caller(self):
        (self.root / "caller").mkdir()
        # Python tells its arguments, and its folder.
        self.program("bin/python3", 'printf "%s\\n" "$PWD" "$1" "${@: -2}"')
        result = self.run_script("tools/faults.sh", "ranks", "--table", "table.md", cwd=self.root / "caller")
        self.assertEqual(result.stdout.splitlines(), [f"{self.root}/caller", f"{self.root}/tests/faults/faults.py", "--table", "table.md"])

    def test_must_belong_to_a_case(self):
        self.assertEqual(self.faults("--list", "no such fault"), (5, []))
        self.assertEqual(self.faults("no such fault"), (5, []))
        self.assertEqual(self.faults("ranks", "--list", "SIGTERM saves"), (5, []))


class Evidence(ScriptCase):
    def complaints_of(self, program):
        """Those of a run of the program with a fault."""
        self.program("weft", program)
        (self.root / "run").mkdir(exist_ok=True)
        case = fault_run.Case("", (0,), "", fault="slow@MPI_Finalize")
        programs = {"weft": str(self.root / "weft"), "mpirun": None, "shim": ""}
        code, _, output, complaints = fault_run.Run(case, programs, self.root / "run").execute()
        self.assertEqual(code, 0, output)
        return complaints

    def test_of_a_fault_is_required(self):
        self.assertEqual(self.complaints_of('touch "$FAULT_FIRED"'), [])
        self.assertEqual(self.complaints_of("exit 0"), [fault_run.NOT_FIRED])

    def problems_of_sweep(self, **codes):
        """Those of a sweep over a program that calls write five times, and ends with codes["write3"] if the third fails, or with 1."""
        def train(flags, fault, fault_rank, fault_path):
            number = int(re.search(r"@write:(\d+)", fault).group(1))
            return Outcome(codes.get(f"write{number}", 1 if number <= 5 else 0), "", 0, [] if number <= 5 else [fault_run.NOT_FIRED])

        def place(ranks):
            (self.root / "case/run").mkdir(parents=True)
            return types.SimpleNamespace(folder=self.root / "case/run", train=train)

        harness = types.SimpleNamespace(place=place, recovery_problems=lambda place, flags: [])
        return checkpoint_faults.every_call(1, 0, "EIO", (1,), calls=("write",))(harness)[1]

    def test_of_the_effect_of_each_fault_is_required(self):
        self.assertEqual(self.problems_of_sweep(), [])
        self.assertEqual(self.problems_of_sweep(write3=0), ["write 3: exit code 0, expected one of (1,)"])
        self.assertEqual(self.problems_of_sweep(write6=2), ["write 6: exit code 2 without a fault"])


if __name__ == "__main__":
    unittest.main()
