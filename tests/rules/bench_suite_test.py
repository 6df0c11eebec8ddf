#!/usr/bin/env python3
"""Tests of the benchmark suite on made-up results and a made-up program: statistics, verdicts, tables, rounds, contestants and
checksums."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import run  # noqa: E402
from suite import checkpoints, launch  # noqa: E402
from suite.checksums import checked, largest_difference, sum_over_ranks  # noqa: E402
from suite.contestants import Command, Contestant, ContestantError  # noqa: E402
from suite.rounds import Variant, measure_interleaved  # noqa: E402
from suite.rows import Goal, Row, measurements_table, verdicts_of, verdicts_table  # noqa: E402
from suite.statistics import median, quantile, ratio, summarize  # noqa: E402


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


class Lock(unittest.TestCase):
    def test_one_script_uses_the_builds_of_a_tree(self):
        error = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(run, "REPOSITORY", Path(folder)):
            with run.lock_build(), contextlib.redirect_stderr(error), self.assertRaises(SystemExit) as refusal:
                run.lock_build()
            run.lock_build().close()  # Its owner has ended.
        self.assertEqual(refusal.exception.code, 2)
        self.assertIn(f"bench/run.py (process {os.getpid()}) uses build/ of this tree", error.getvalue())


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
        with self.assertRaisesRegex(ContestantError, "false"):
            launch.output_of("false")

    def test_a_command_that_does_not_end_in_time_is_ended_and_fails(self):
        started = []
        start = subprocess.Popen

        def record(*arguments, **options):
            started.append(start(*arguments, **options))
            return started[-1]

        endless = ["sleep", "60"]
        for run in (lambda: checkpoints.seconds_of([endless, ["true"]], limit=0.01), lambda: launch.output_of(*endless, limit=0.01)):
            with mock.patch("subprocess.Popen", side_effect=record), self.assertRaisesRegex(ContestantError, "sleep did not end within"):
                run()
        self.assertEqual(len(started), 3)
        self.assertNotIn(None, [process.returncode for process in started])


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


if __name__ == "__main__":
    unittest.main()
