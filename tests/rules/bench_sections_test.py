#!/usr/bin/env python3
"""Tests of the sections of the benchmark suite: their requests, checks, cases and goals."""

import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import forecasts  # noqa: E402
from suite import compute, emulated, kernels, launch, machine, memory_use, proportional_set, torch_package  # noqa: E402
from suite.contestants import ContestantError  # noqa: E402
from suite.peers import Peers  # noqa: E402
from suite.rounds import Measurements, measure_interleaved  # noqa: E402
from suite.rows import Row, measurements_table, verdicts_of  # noqa: E402
from suite.setting import Setting  # noqa: E402
from suite.statistics import geometric_mean  # noqa: E402
from suite.steps import LARGE, SHORT, Case, Mesh, losses_agree, variants_of  # noqa: E402


class Memory(unittest.TestCase):
    def test_a_rollup_counts_files_in_the_total_only(self):
        text = "55 7ffe ---p 00:00 0 [rollup]\nRss: 900 kB\nPss: 700 kB\nPss_Anon: 300 kB\nPss_File: 150 kB\nPss_Shmem: 250 kB\n"
        self.assertEqual(proportional_set.parse_rollup(text), proportional_set.ProportionalSet(700 * 1024, 550 * 1024))

    def test_both_sections_measure_pytorch_with_three_settings_of_malloc_of_which_goals_use_two(self):
        setting = Setting(Path(), Peers(Path()), quick=False)
        of_steps = [(name, make) for name, make, _ in memory_use.contestants(setting, 2) if name.startswith("PyTorch")]
        of_backends = [(name, make) for name, make, _ in torch_package.memory_contestants(setting, 2) if name.startswith("backend")]
        for name, found in (("PyTorch", of_steps), (torch_package.GLOO, of_backends)):
            self.assertEqual([variant for variant, _ in found][:2], list(memory_use.usual_settings(name)))
            settings = [make(Path()).environment.get("MALLOC_MMAP_THRESHOLD_") for _, make in found]
            self.assertEqual(settings, [launch.KEEP_FREED_MEMORY["MALLOC_MMAP_THRESHOLD_"], None, "1000000"])


class Steps(unittest.TestCase):
    def test_a_request_names_mesh_length_dtype_and_model(self):
        expected = {"replicate": 1, "shard": 2, "length": 1024, "dtype": "bf16", "model": "110M"}
        self.assertEqual(Case(Mesh(1, 2), 1024, 4, "bf16", LARGE).request(), expected)

    def test_the_name_of_a_case_leaves_out_what_is_usual(self):
        self.assertEqual(str(Case(Mesh(1, 2), 128)), "step, FSDP on 2, 128 tokens a rank")
        self.assertEqual(
            str(Case(Mesh(2, 2), 1024, None, "bf16", LARGE)), "step, HSDP 2 x 2, bf16, 110M parameters, 1024 tokens a rank"
        )

    def test_every_variant_of_pytorch_is_compared_with_weft(self):
        class StepPeer:
            def __init__(self, **losses):
                self.losses = losses  # By the argument "compiled", which weft does not have.

            def request(self, verb, compiled=None, **arguments):
                return [{"losses": self.losses[f"of_{compiled}"], "seconds": [1.0]}]

            def seconds(self, verb, **arguments):
                return self.request(verb, **arguments)[0]["seconds"]

        weft, right, wrong = StepPeer(of_None=[8.0, 7.0]), [8.0, 7.0001], [8.0, 7.01]
        for name, of_0, of_1 in (("PyTorch", wrong, right), ("PyTorch, torch.compile", right, wrong)):
            variants = variants_of(weft, StepPeer(of_0=of_0, of_1=of_1), Case(Mesh(1, 2), SHORT))
            missing = measure_interleaved(variants, rounds=1).missing
            self.assertEqual(list(missing), [name])
            self.assertIn("differ", missing[name])

    def test_losses_in_bf16_may_differ_more_than_in_f32(self):
        self.assertTrue(losses_agree([8.0, 7.0], [8.0, 7.002], "bf16"))
        self.assertFalse(losses_agree([8.0, 7.0], [8.0, 7.002], "f32"))
        self.assertFalse(losses_agree([8.0, 7.0], [8.0, 7.02], "bf16"))

    def test_on_hosts_bf16_halves_the_bytes_of_weights_but_not_of_gradients(self):
        hosts = emulated.Hosts(2, 2, 1)
        gradients = hosts.across(4 * emulated.MODEL_ELEMENTS)
        f32, bf16 = (emulated.bytes_per_host(hosts, Mesh(1, 4), dtype) for dtype in ("f32", "bf16"))
        self.assertEqual(2 * (bf16 - gradients), f32 - gradients)
        self.assertEqual(emulated.bytes_per_host(hosts, Mesh(2, 2), "bf16"), 2 * gradients)


class FailedPeer:
    """A contestant that fails every request."""

    def seconds(self, verb, **arguments):
        raise ContestantError("it crashed")

    request = seconds


class OnHosts(unittest.TestCase):
    hosts = emulated.Hosts(2, 2, 1)

    def rows_of(self, section):
        with mock.patch.object(emulated, "start", return_value=FailedPeer()):
            return list(section(Setting(Path(), Peers(Path()), quick=True), self.hosts, mock.MagicMock()))

    def test_rows_without_any_contestant_have_the_reason(self):
        for section in (emulated.collectives_on, emulated.steps_on):
            rows = self.rows_of(section)
            table = measurements_table(rows)
            for row in rows:
                self.assertIn(f"| {row.what} | {row.weft} | not measured: it crashed |", table)
            self.assertEqual({verdict.note for verdict in verdicts_of(rows)}, {"it crashed"})

    def test_a_bound_without_the_stream_or_compute_alone_has_their_reasons(self):
        measured = Measurements({"compute alone": [3.0], emulated.NOMINAL: [4.0]}, {emulated.STREAM: "it crashed"})
        emulated.add_bound(measured)
        self.assertEqual(measured.missing[emulated.BOUND], f"{emulated.STREAM}: it crashed")
        measured = Measurements({emulated.NOMINAL: [4.0]}, {emulated.STREAM: "it crashed", "compute alone": "gone"})
        emulated.add_bound(measured)
        self.assertEqual(measured.missing[emulated.BOUND], f"compute alone: gone; {emulated.STREAM}: it crashed")

    def test_the_bound_is_the_longer_of_compute_and_the_faster_wire(self):
        measured = Measurements({"compute alone": [3.0, 9.0], emulated.NOMINAL: [4.0, 4.0], emulated.STREAM: [5.0, 3.5]}, {})
        emulated.add_bound(measured)
        self.assertEqual((measured.rounds[emulated.BOUND], measured.missing), ([4.0, 9.0], {}))


class Machine(unittest.TestCase):
    def test_the_instructions_for_bf16_come_from_the_flags(self):
        for flags, expected in (
            ("fpu avx512f avx512_bf16 amx_tile amx_bf16", "AMX"),
            ("fpu avx512f avx512_bf16", "AVX512-BF16"),
            ("fpu avx2", "no bf16 instructions"),
        ):
            self.assertEqual(machine.bf16_instructions(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n"), expected)
        self.assertEqual(machine.bf16_instructions(""), "no bf16 instructions")

    def test_the_version_of_a_program_that_is_missing_or_fails_is_unknown(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("git", "exit 128"), ("g++", ":"), ("mpirun", "echo mpirun 4.1.4; echo more")):
                program = Path(folder) / name
                program.write_text(f"#!/bin/sh\n{text}\n")
                program.chmod(0o755)
            with mock.patch.dict("os.environ", PATH=folder):
                versions = machine.versions()
                self.assertEqual((versions["Open MPI"], versions["compiler"], versions["weft"]), ("4.1.4", "unknown", "unknown"))
            with mock.patch.dict("os.environ", PATH=f"{folder}/none"):
                self.assertEqual(machine.versions()["weft"], "unknown")

    def test_an_environment_without_pip_has_no_versions(self):
        with tempfile.TemporaryDirectory() as folder:
            peers = Peers(Path(folder))
            peers.python.parent.mkdir(parents=True)
            peers.python.write_text("#!/bin/sh\nexit 1\n")
            peers.python.chmod(0o755)
            self.assertEqual(peers.versions(), {})

    def test_a_run_that_gives_no_rates_is_not_repeated_for_the_other_variant(self):
        rates = compute.Rates(Setting(Path(), Peers(Path()), quick=True), compute.CASES[0])
        with mock.patch.object(compute, "output_of", side_effect=ContestantError("too slow")) as run:
            for variant in (compute.STEP, compute.PRODUCTS):
                with self.assertRaisesRegex(ContestantError, "too slow"):
                    rates.take(variant)
        run.assert_called_once()

    def test_a_run_serves_one_round_of_both_variants(self):
        rates = compute.Rates(Setting(Path(), Peers(Path()), quick=True), compute.CASES[0])
        output = "  step   10.0 ms   50.0 GFLOP/s\n  products alone   8.0 ms   100.0 GFLOP/s\n"
        with mock.patch.object(compute, "output_of", return_value=output) as run:
            self.assertEqual([rates.take(variant) for variant in (compute.PRODUCTS, compute.STEP)], [10, 20])
            run.assert_called_once()
            rates.take(compute.STEP)
            self.assertEqual(run.call_count, 2)

    def test_the_goal_for_the_rate_in_bf16_needs_amx(self):
        measured = Measurements({compute.STEP: [1.0, 1.0]}, {})
        self.assertEqual(compute.amx_goals(measured, "AVX512-BF16"), [])
        self.assertIn("ran on AVX512-BF16", measured.missing[compute.AMX_GOAL])
        measured = Measurements({compute.STEP: [1.0, 1.25]}, {})
        goals = compute.amx_goals(measured, machine.AMX)
        verdict = verdicts_of([Row("compute", "ms / GFLOP", compute.STEP, measured.rounds, {}, goals)])[0]
        self.assertAlmostEqual(verdict.measured.value, 1000 / 1.125 / compute.AMX_RATE)
        self.assertEqual(verdict.word, "met")


class TorchPackage(unittest.TestCase):
    """The peer answers each api with its losses."""

    names = [torch_package.BACKEND, torch_package.FULLY_SHARD, torch_package.DIRECT]

    class StepPeer:
        def __init__(self, **losses):
            self.losses = losses

        def request(self, verb, api, **arguments):
            if api not in self.losses:
                raise ContestantError("it crashed")
            return [{"losses": self.losses[api], "seconds": [1.0]}]

        def seconds(self, verb, **arguments):
            return self.request(verb, **arguments)[0]["seconds"]

    def missing(self, weft, gloo):
        variants = torch_package.checked_variants(self.names, weft, gloo, Mesh(1, 2))
        return measure_interleaved(variants, rounds=1).missing

    def test_every_way_over_weft_is_compared_with_gloo(self):
        gloo, right, wrong = self.StepPeer(fsdp2=[8.0, 7.0]), [8.0, 7.0001], [8.0, 7.01]
        self.assertEqual(self.missing(self.StepPeer(fsdp2=right, weft=right, weft_direct=right), gloo), {})
        for api, name in (("fsdp2", self.names[0]), ("weft", self.names[1]), ("weft_direct", self.names[2])):
            losses = {"fsdp2": right, "weft": right, "weft_direct": right} | {api: wrong}
            missing = self.missing(self.StepPeer(**losses), gloo)
            self.assertEqual(list(missing), [name])
            self.assertIn("differ", missing[name])

    def test_without_gloo_there_is_nothing_to_compare(self):
        weft = self.StepPeer(fsdp2=[8.0], weft=[8.0], weft_direct=[8.0])
        self.assertEqual(self.missing(weft, self.StepPeer()), {})


class Forecasts(unittest.TestCase):
    def test_a_rank_has_one_thread_on_every_machine_as_in_its_run(self):
        for cpus in (1, 2, 3, 64):
            with mock.patch("os.cpu_count", return_value=cpus):
                for row in forecasts.ROWS:
                    cores = forecasts.cores_of(row)
                    self.assertLessEqual(cores, cpus)
                    self.assertLessEqual(cores // (forecasts.ranks_of(*row[:2]) // row[2]), 1)


class Kernels(unittest.TestCase):
    def test_each_round_of_the_mean_is_the_geometric_mean_over_rows(self):
        rounds = [{"weft": [1, 2], "PyTorch": [4, 8]}, {"weft": [4, 8], "PyTorch": [9, 2]}]
        rows = [Row("product", "ms", "weft", of_row) for of_row in rounds]
        mean = kernels.mean_of_rows(rows).rounds
        for found, expected in ((mean["weft"], [2, 4]), (mean["PyTorch"], [6, 4])):
            for a, b in zip(found, expected, strict=True):
                self.assertAlmostEqual(a, b)
        self.assertAlmostEqual(geometric_mean([1, 10, 100]), 10)

    def test_a_row_that_misses_a_contestant_makes_it_missing_in_the_mean(self):
        rows = [Row("a", "ms", "weft", {"weft": [1], "PyTorch": [4]}), Row("b", "ms", "weft", {"PyTorch": [9]}, {"weft": "wrong"})]
        mean = kernels.mean_of_rows(rows)
        self.assertEqual((list(mean.rounds), mean.missing), (["PyTorch"], {"weft": "wrong"}))


if __name__ == "__main__":
    unittest.main()
