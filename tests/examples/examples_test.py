#!/usr/bin/env python3
"""Tests that the examples behave as examples/README.md states.

    examples_test.py FOLDER_OF_PROGRAMS MPIRUN
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = MPIRUN = ""


def run(*command):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "WEFT_TIMEOUT_S": "60"}
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment).stdout


def losses(ranks, program="mixer"):
    output = run(MPIRUN, "-n", str(ranks), f"{PROGRAMS}/{program}")
    return [float(loss) for loss in re.findall(r"^step \d+  loss ([\d.]+)\r?$", output, re.MULTILINE)]


class Mixer(unittest.TestCase):
    def test_gives_the_same_losses_on_any_number_of_ranks(self):
        one_rank = losses(1)
        self.assertEqual(len(one_rank), 10)
        self.assertLess(one_rank[-1], one_rank[0] / 20)
        for ranks in (2, 3, 4, 17):  # 17: a rank without images.
            for loss, reference in zip(losses(ranks), one_rank, strict=True):
                self.assertAlmostEqual(loss / reference, 1, delta=1e-4)

    def test_has_fewer_than_60_lines(self):
        self.assertLess(len((SOURCES / "mixer.cc").read_text().splitlines()), 60)


class LongSequence(unittest.TestCase):
    def test_gives_the_same_losses_on_any_number_of_ranks(self):
        one_rank = losses(1, "long_sequence")
        self.assertEqual(len(one_rank), 4)
        self.assertLess(one_rank[-1], one_rank[0] / 2)
        for ranks in (2, 3):
            for loss, reference in zip(losses(ranks, "long_sequence"), one_rank, strict=True):
                self.assertAlmostEqual(loss / reference, 1, delta=1e-4)


class ForwardOnly(unittest.TestCase):
    def test_unshards_at_most_two_of_eight_layers_at_once(self):
        match = re.search(r"peak unsharded (\d+) of (\d+) bytes", run(f"{PROGRAMS}/forward_only"))
        self.assertEqual(int(match.group(1)) * 4, int(match.group(2)) + 256)  # 256 bytes of padding.


class Checkpoint(unittest.TestCase):
    def test_goes_on_with_the_losses_of_an_undisturbed_run(self):
        with tempfile.TemporaryDirectory() as folder:
            output = run(f"{PROGRAMS}/checkpoint", f"{folder}/checkpoints")
        steps = [(int(step), float(loss)) for step, loss in re.findall(r"^step (\d+)  loss ([\d.]+)$", output, re.MULTILINE)]
        self.assertEqual([step for step, _ in steps], [1, 2, 3, 4, 5, 5, 6, 7, 8])
        self.assertAlmostEqual(steps[4][1] / steps[5][1], 1, delta=1e-4)  # Step 5 of four and of three ranks.
        self.assertLess(steps[-1][1], steps[0][1])


class FrozenParameters(unittest.TestCase):
    def test_reduces_and_has_moments_of_trained_layers_alone(self):
        output = run(f"{PROGRAMS}/frozen_parameters")
        steps = re.findall(r"^step (\d+)  loss ([\d.]+)  reduced (\d+) bytes  shards with moments (\d+)$", output, re.MULTILINE)
        self.assertEqual([(step, moments) for step, _, _, moments in steps], [("1", "1"), ("6", "1"), ("11", "2"), ("16", "2")])
        one_layer = 3 * 32 * 32 // 4 * 4  # Bytes that a rank takes from three peers.
        self.assertEqual([int(reduced) for _, _, reduced, _ in steps], [one_layer, one_layer, 2 * one_layer, 2 * one_layer])
        self.assertLess(float(steps[-1][1]), float(steps[0][1]))


class CustomCollective(unittest.TestCase):
    def test_gives_the_losses_of_the_engine(self):
        output = run(f"{PROGRAMS}/custom_collective")
        losses = [float(loss) for loss in re.findall(r"^step \d+  loss ([\d.]+)$", output, re.MULTILINE)]
        self.assertEqual(len(losses), 10)
        self.assertLess(losses[4], losses[0])
        for custom, engine in zip(losses[5:], losses[:5], strict=True):
            self.assertAlmostEqual(custom / engine, 1, delta=1e-4)
        self.assertEqual(re.findall(r"^custom reduce-scatters: (\d+)$", output, re.MULTILINE), ["0", "5"])


class OwnSchedule(unittest.TestCase):
    def test_compares_two_schedules_without_ranks(self):
        output = run(f"{PROGRAMS}/own_schedule")
        steps = re.findall(r"^(built-in|paired) +([\d.]+) ms a step, +([\d.]+) ms of it exposed, .* ([\d.]+) KiB of gradients$",
                           output, re.MULTILINE)
        self.assertEqual([step[0] for step in steps], ["built-in", "paired"])
        (_, built_in_ms, _, built_in_kib), (_, paired_ms, _, paired_kib) = steps
        self.assertNotEqual(built_in_ms, paired_ms)
        self.assertGreater(float(paired_kib), float(built_in_kib))


class RawEngine(unittest.TestCase):
    def test_gathers_and_reduces_without_a_copy(self):
        bytes_of_peers = 6 * 2 * 16 * 1024 * 4  # Six blocks, two peers.
        self.assertIn(f"6 blocks are right: {bytes_of_peers} bytes gathered, {bytes_of_peers} reduced, 0 copied",
                      run(MPIRUN, "-n", "3", f"{PROGRAMS}/raw_engine"))


class Readme(unittest.TestCase):
    def test_lists_every_example(self):
        listed = set(re.findall(r"^\| \[([\w.]+)\]\(\1\)", (SOURCES / "README.md").read_text(), re.MULTILINE))
        self.assertEqual(listed, {path.name for path in SOURCES.iterdir() if path.suffix in (".cc", ".py", ".sh")})


if __name__ == "__main__":
    PROGRAMS, MPIRUN = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
