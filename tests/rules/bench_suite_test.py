#!/usr/bin/env python3
"""Tests of the benchmark suite on made-up results and a made-up program: statistics, verdicts, tables, rounds, contestants,
memory, cases and goals."""

import os
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import forecasts  # noqa: E402
from suite import checkpoints, compute, emulated, kernels, launch, machine, memory_use, proportional_set, torch_package  # noqa: E402
from suite.checksums import checked, largest_difference, sum_over_ranks  # noqa: E402
from suite.contestants import Command, Contestant, ContestantError  # noqa: E402
from suite.peers import Peers  # noqa: E402
from suite.rounds import Measurements, Variant, measure_interleaved  # noqa: E402
from suite.rows import Goal, Row, measurements_table, verdicts_of, verdicts_table  # noqa: E402
from suite.setting import Setting  # noqa: E402
from suite.statistics import geometric_mean, median, quantile, ratio, summarize  # noqa: E402
from suite.steps import LARGE, SHORT, Case, Mesh, losses_agree, variants_of  # noqa: E402


class Statistics(unittest.TestCase):
    def test_quantiles_are_interpolated_linearly(self):
        self.assertEqual(quantile([4, 1, 3, 2], 0.5), 2.5)
        self.assertEqual(quantile([4, 1, 3, 2], 0.25), 1.75)
        self.assertEqual(quantile([7], 0.9), 7)
        with self.assertRaises(ValueError):
            quantile([], 0.5)

    def test_a_summary_has_the_quartiles(self):
        summary = summarize([5, 1, 2, 3, 4])
        self.assertEqual((summary.low, summary.median, summary.high, summary.count), (2, 3, 4, 5))

    def test_a_ratio_divides_medians_and_its_spread_divides_rounds(self):
        found = ratio([10, 40, 90], [5, 10, 15])
        self.assertEqual(found.value, 4)  # 40 / 10
        self.assertEqual((found.low, found.high), (3, 5))  # Of 2, 4, 6.

    def test_a_round_that_is_slow_on_both_sides_does_not_widen_the_spread(self):
        found = ratio([10, 100, 10], [5, 50, 5])
        self.assertEqual((found.low, found.value, found.high), (2, 2, 2))

    def test_sides_with_different_numbers_of_rounds_are_an_error(self):
        with self.assertRaises(ValueError):
            ratio([1, 2], [1])


class Binding(unittest.TestCase):
    def test_ranks_are_bound_to_the_cpus_in_turn_with_all_their_threads(self):
        cpus = sorted(os.sched_getaffinity(0))
        ranks = [subprocess.Popen(["sleep", "60"]) for _ in range(len(cpus) + 1)]
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait)
        thread.start()
        try:
            launch.bind_to_cpus([rank.pid for rank in ranks])
            self.assertEqual([os.sched_getaffinity(rank.pid) for rank in ranks], [{cpu} for cpu in [*cpus, cpus[0]]])
            launch.bind_to_cpus([os.getpid()])
            self.assertEqual(os.sched_getaffinity(thread.native_id), {cpus[0]})
        finally:
            for task in (0, thread.native_id):
                os.sched_setaffinity(task, cpus)
            stop.set()
            thread.join()
            for rank in ranks:
                rank.kill()
                rank.wait()


class Rows(unittest.TestCase):
    goal = Goal(("slow", "fast"), 3, "times the fastest")

    def row(self, rounds, missing=None):
        return Row("AG", "ms", "weft", rounds, missing or {}, [self.goal])

    def test_a_goal_is_measured_against_the_fastest_contestant(self):
        verdict = verdicts_of([self.row({"weft": [10], "slow": [100], "fast": [29]})])[0]
        self.assertEqual((verdict.measured.value, verdict.note, verdict.word), (2.9, "fast", "**missed**"))

    def test_a_ratio_equal_to_the_goal_meets_it(self):
        self.assertEqual(verdicts_of([self.row({"weft": [10], "fast": [30]})])[0].word, "met")

    def test_a_missing_contestant_is_listed_with_its_reason(self):
        row = self.row({"weft": [10]}, {"slow": "not\ninstalled | at all", "fast": "gone"})
        verdict = verdicts_of([row])[0]
        self.assertEqual((verdict.word, verdict.measured), ("not measured", None))
        self.assertIn("not installed / at all", verdicts_table([verdict]))
        self.assertIn("| AG | slow | not measured: not installed / at all |", measurements_table([row]))

    def test_a_goal_is_not_met_without_note_if_a_contestant_is_missing(self):
        for rounds, word in (({"weft": [10], "slow": [40]}, "met, without fast"), ({"weft": [10], "slow": [20]}, "**missed**")):
            self.assertEqual(verdicts_of([self.row(rounds, {"fast": "it crashed"})])[0].word, word)

    def test_a_contestant_that_a_row_does_not_have_is_not_missing(self):
        self.assertEqual(verdicts_of([self.row({"weft": [10], "slow": [40]})])[0].word, "met")

    def test_a_row_without_weft_is_not_measured(self):
        verdict = verdicts_of([self.row({"fast": [30]}, {"weft": "it crashed"})])[0]
        self.assertEqual((verdict.word, verdict.note), ("not measured", "it crashed"))

    def test_a_table_lists_each_contestant_with_its_ratio(self):
        table = measurements_table([self.row({"weft": [10, 12, 11], "fast": [22, 22, 22]})])
        self.assertIn("| AG | weft | 11.0 ms | 10.5-11.5 |  |  |", table)
        self.assertIn("| AG | fast | 22.0 ms | 22.0-22.0 | 2.00 | 1.92-2.10 |", table)


class Rounds(unittest.TestCase):
    def test_rounds_start_with_different_contestants_and_the_first_round_does_not_count(self):
        calls = []

        def way(name):
            return Variant(name, lambda: calls.append(name) or [len(calls)])

        measured = measure_interleaved([way("a"), way("b")], rounds=2)
        self.assertEqual(calls, ["a", "b", "b", "a", "a", "b"])
        self.assertEqual(measured.rounds, {"a": [4, 5], "b": [3, 6]})

    def test_every_second_round_runs_in_reverse_order(self):
        calls = []
        measure_interleaved([Variant(name, lambda name=name: calls.append(name) or [1]) for name in "abcd"], rounds=3)
        self.assertEqual("".join(calls), "abcd" "badc" "cdab" "dcba")

    def test_the_value_of_a_round_is_the_scaled_median_of_its_repeats(self):
        self.assertEqual(measure_interleaved([Variant("a", lambda: [3, 1, 2])], 1, scale=10).rounds, {"a": [20]})

    def test_a_contestant_that_fails_is_left_out_with_its_reason(self):
        def fail():
            raise ContestantError("it crashed")

        measured = measure_interleaved([Variant("a", lambda: [1]), Variant("b", fail)], rounds=2)
        self.assertEqual(measured.rounds, {"a": [1, 1]})
        self.assertEqual(measured.missing, {"b": "it crashed"})


# A program of one rank. It answers `half` with a part of a reply, and `wait` never.
FAKE = """
import json, os, socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(os.environ["WEFT_BENCH_SOCKET"])
print("the log of the fake", file=sys.stderr, flush=True)
stream = peer.makefile("rw")
def send(text):
    stream.write(text)
    stream.flush()
send(sys.argv[1] if len(sys.argv) > 1 else json.dumps({"rank": 0, "pid": os.getpid()}) + "\\n")
for line in stream if len(sys.argv) == 1 else ():
    verb = line.split()[0]
    if verb == "half":
        send('{"seconds": [')
        break
    if verb != "wait":
        send(json.dumps({"seconds": [1.0, 3.0, 2.0]}) + "\\n")
"""


class Contestants(unittest.TestCase):
    def contestant(self, *arguments, request_seconds=60):
        command = Command([[sys.executable, "-c", FAKE, *arguments]], {})
        return Contestant("fake", 1, lambda _: command, request_seconds)

    def fails(self, contestant, verb):
        with self.assertRaises(ContestantError) as caught:
            contestant.seconds(verb)
        self.assertIn("the log of the fake", str(caught.exception))
        return str(caught.exception).splitlines()[0]

    def test_a_program_answers_one_request_after_the_other(self):
        with self.contestant() as fake:
            self.assertEqual(fake.seconds("run", size=1), [1.0, 3.0, 2.0])
            self.assertEqual(median(fake.seconds("run")), 2)

    def test_a_program_that_does_not_answer_in_time_fails_with_this_reason_from_then_on(self):
        with self.contestant(request_seconds=0.01) as fake:
            for verb in ("wait", "run", "run"):
                self.assertEqual(self.fails(fake, verb), "fake did not answer within 0.01 s:")
            self.assertFalse(Path(f"/proc/{fake.pids[0]}").exists())  # It must not take time of others.

    def test_all_variants_of_a_program_that_does_not_answer_are_left_out(self):
        with self.contestant(request_seconds=0.01) as fake:
            variants = [Variant(verb, lambda verb=verb: fake.seconds(verb)) for verb in ("wait", "run")]
            measured = measure_interleaved([*variants, Variant("other", lambda: [1])], rounds=1)
        self.assertEqual(measured.rounds, {"other": [1]})
        self.assertEqual(list(measured.missing), ["wait", "run"])

    def test_a_program_that_ends_within_a_reply_fails_from_then_on(self):
        with self.contestant() as fake:
            for verb in ("half", "run"):
                self.assertEqual(self.fails(fake, verb), "fake sent what is no reply:")

    def test_a_program_that_ends_before_its_first_line_does_not_start(self):
        for hello, reason in (("", "has ended"), ('{"rank"', "sent what is no reply")):
            with self.assertRaisesRegex(ContestantError, f"fake {reason}:\nthe log of the fake"):
                self.contestant(hello)

    def test_a_command_that_fails_is_a_contestant_that_fails(self):
        with self.assertRaisesRegex(ContestantError, "false"):
            checkpoints.seconds_of([["false"], ["true"]])


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


class Machine(unittest.TestCase):
    def test_the_instructions_for_bf16_come_from_the_flags(self):
        for flags, expected in (
            ("fpu avx512f avx512_bf16 amx_tile amx_bf16", "AMX"),
            ("fpu avx512f avx512_bf16", "AVX512-BF16"),
            ("fpu avx2", "no bf16 instructions"),
        ):
            self.assertEqual(machine.bf16_instructions(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n"), expected)
        self.assertEqual(machine.bf16_instructions(""), "no bf16 instructions")

    def test_the_goal_for_the_rate_in_bf16_needs_amx(self):
        measured = Measurements({compute.STEP: [1.0, 1.0]}, {})
        self.assertEqual(compute.amx_goals(measured, "AVX512-BF16"), [])
        self.assertIn("ran on AVX512-BF16", measured.missing[compute.AMX_GOAL])
        measured = Measurements({compute.STEP: [1.0, 1.25]}, {})
        goals = compute.amx_goals(measured, machine.AMX)
        verdict = verdicts_of([Row("compute", "ms / GFLOP", compute.STEP, measured.rounds, {}, goals)])[0]
        self.assertAlmostEqual(verdict.measured.value, 1000 / 1.125 / compute.AMX_RATE)
        self.assertEqual(verdict.word, "met")


class Peer:
    """Answers every request with the replies of its ranks."""

    name = "peer"

    def __init__(self, *replies):
        self.replies = replies

    def request(self, verb, **arguments):
        if not self.replies:
            raise ContestantError("it crashed")
        return list(self.replies)


class Checksums(unittest.TestCase):
    right = {"out.sums": [3.0, -1.0], "out.squares": [4.0, 100.0]}

    def test_a_difference_is_relative_to_the_root_of_the_squares_of_its_run(self):
        self.assertAlmostEqual(largest_difference({**self.right, "out.sums": [3.1, -1.0]}, self.right), 0.05)
        self.assertAlmostEqual(largest_difference({**self.right, "out.sums": [3.0, -1.1]}, self.right), 0.01)
        self.assertEqual(largest_difference(self.right, self.right), 0)
        zeros = {"out.sums": [0.0], "out.squares": [0.0]}
        self.assertEqual(largest_difference(zeros, zeros), 0)

    def test_no_number_and_other_sizes_or_names_differ_infinitely(self):
        for sums in ([float("nan"), -1.0], [3.0, float("inf")], [3.0], [3.0, -1.0, 0.0]):
            self.assertEqual(largest_difference({**self.right, "out.sums": sums}, self.right), float("inf"))
        self.assertEqual(largest_difference({"dq.sums": [3.0, -1.0], "dq.squares": [4.0, 100.0]}, self.right), float("inf"))

    def test_parts_of_ranks_are_added(self):
        parts = [{"out.sums": [2.0, 0.0], "out.squares": [1.0, 0.0]}, {"out.sums": [1.0, -1.0], "out.squares": [3.0, 100.0]}]
        self.assertEqual(sum_over_ranks(parts), self.right)

    def test_a_wrong_result_replaces_weft_by_the_reason(self):
        weft, wrong = Peer(self.right), Peer({**self.right, "out.sums": [3.0, 1.0]})
        self.assertIs(checked(weft, Peer(self.right), {"dtype": "f32"}), weft)
        with self.assertRaisesRegex(ContestantError, "weft's result is wrong"):
            checked(wrong, Peer(self.right), {"dtype": "f32"}).seconds("run")

    def test_bf16_may_differ_more_than_f32(self):
        rounded = Peer({**self.right, "out.sums": [3.04, -1.0]})
        self.assertIs(checked(rounded, Peer(self.right), {"dtype": "bf16"}), rounded)
        self.assertIsNot(checked(rounded, Peer(self.right), {"dtype": "f32"}), rounded)

    def test_without_the_other_contestant_there_is_nothing_to_compare(self):
        weft = Peer(self.right)
        self.assertIs(checked(weft, Peer(), {"dtype": "f32"}), weft)


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
