#!/usr/bin/env python3
"""Tests of the program from end to end: its output, files and exit codes."""
import array
import json
import os
import pathlib
import re
import subprocess
import sys

from weft_case import SMALL, TEXT, WeftCase, main, weights_hash

FIELDS = ("step loss grad_norm lr tokens tokens_seen tokens_per_s tflops step_ms exposed_comm_ms bytes wire_bytes wire_saved_bytes "
          "cross_domain_bytes copied_bytes peak_buffer_bytes peak_bytes allocated_bytes rss_bytes skipped_steps").split()
FIRST_FIELDS = ["byte_inputs"]  # Of the first line of a run, after the others.


class Texts(WeftCase):
    def test_prints_help_and_version(self):
        self.assertIn("Commands:", self.run_weft("--help").stdout)
        self.assertIn("--dp-shard", self.run_weft("train", "--help").stdout)
        self.assertRegex(self.run_weft("--version").stdout, r"^weft \d+\.\d+\.\d+\n$")

    def test_prints_the_version_once_under_mpirun(self):
        result = self.run_weft("--version", ranks=2)
        self.assertEqual(result.stdout.count("weft"), 1)

    def test_prints_no_escape_sequences_of_a_file(self):
        record = {"format": 2, "rank": 0, "ranks": 1, "generation": 0, "phase": "", "failure": "\x1b[2J gone"}
        record |= {key: [] for key in ("silent", "late", "waits_for", "lanes", "operations")}
        self.write("dump/rank-0.json", json.dumps(record))
        result = self.run_weft("diagnose", "dump")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("\\x1b[2J gone", result.stdout)
        self.assertNotIn("\x1b", result.stdout)


class Runs(WeftCase):
    def metrics(self, *arguments, ranks=None):
        (self.folder / "m.jsonl").unlink(missing_ok=True)
        self.train("--metrics", "m.jsonl", *arguments, ranks=ranks)
        return [json.loads(line) for line in (self.folder / "m.jsonl").read_text().splitlines()]

    def test_writes_metrics_and_configuration(self):
        lines = self.metrics("--steps", "3", "--batch-size", "2")
        self.assertEqual([line["step"] for line in lines], [1, 2, 3])
        for line in lines:
            self.assertEqual(list(line), FIELDS + FIRST_FIELDS * (line["step"] == 1))
            self.assertEqual(line["tokens"], 32)
        self.assertAlmostEqual(lines[0]["loss"], 5.545, delta=0.1)  # ln 256: uniform predictions.
        self.assertEqual(lines[2]["tokens_seen"], 96)
        config = json.loads((self.folder / "m.config.json").read_text())
        self.assertEqual(config["mesh"]["value"], "replicate 1 x shard 1")
        self.assertEqual(self.files(), ["m.config.json", "m.config.toml", "m.jsonl", "text.txt"])

    def test_reduces_the_loss(self):
        lines = self.metrics("--steps", "60", "--batch-size", "4", "--lr", "1e-2")
        self.assertLess(lines[-1]["loss"], lines[0]["loss"] - 2)

    def test_prints_plain_lines_without_a_terminal(self):
        for ranks in (None, 2):
            output = self.train("--steps", "2", ranks=ranks).replace("\r\n", "\n")
            self.assertEqual(len(re.findall(r"^step \d/2  loss ", output, re.MULTILINE)), 2)
            self.assertNotIn("\r", output)
            self.assertRegex(output, rf"(?m)^mesh +replicate 1 x shard {ranks or 1}")

    def test_prints_how_it_multiplies_bf16(self):
        self.assertNotIn("products", self.train("--steps", "1"))
        output = self.train("--steps", "1", "--param-dtype", "bf16")
        self.assertRegex(output, r"(?m)^products +bf16( on AMX tiles, small ones| widened to f32)? by (oneDNN|Eigen)(; attention's on [\w-]+)?  \(the CPU ")
        self.assertRegex(output, r"(?m)^speed +[1-9]\d* GFLOP/s by the threads of rank 0, in bf16 products of size 512$")

    def test_gives_every_mesh_the_losses_of_one_rank(self):
        flags = ["--steps", "5", "--batch-size", "4", "--lr", "1e-2"]
        expected = self.metrics(*flags)
        for ranks, mesh in [(2, ["--dp-shard", "2"]), (2, ["--dp-replicate", "2"]), (4, ["--dp-replicate", "2"]),
                            (2, ["--cp", "2"]), (4, ["--dp-replicate", "2", "--cp", "2"])]:
            for line, reference in zip(self.metrics(*flags, *mesh, ranks=ranks), expected, strict=True):
                for field in ("loss", "grad_norm"):
                    self.assertAlmostEqual(line[field] / reference[field], 1, delta=1e-4)

    def test_prints_the_context_parallel_scheme_and_counts_its_bytes(self):
        lines = self.metrics("--steps", "2", "--cp", "2", "--cp-scheme", "ring", "--document-separator", "32", ranks=2)
        for line in lines:
            self.assertGreater(line["bytes"]["context"], 0)
            self.assertEqual(line["copied_bytes"], 0)
        config = json.loads((self.folder / "m.config.json").read_text())
        self.assertEqual(config["mesh"]["value"], "replicate 1 x shard 1 x context 2")
        self.assertIn("split over 2 ranks, ring", config["sequences"]["value"])
        self.assertEqual(config["sequences"]["reason"], "--cp-scheme")
        self.assertIn("documents end at token 32", config["data"]["value"])
        self.metrics("--steps", "1", "--cp", "2", ranks=2)
        config = json.loads((self.folder / "m.config.json").read_text())
        self.assertIn("MiB to a rank", config["sequences"]["reason"])

    def test_trains_with_sparse_attention(self):
        self.write("run.toml", 'attention = "dsa"\ndsa-topk = 4\ndsa-index-heads = 2\n')
        flags = ["--config", "run.toml", "--dsa-index-dim", "8", "--dsa-warmup-steps", "1", "--steps", "3", "--batch-size", "4"]
        for ranks in (None, 2):
            lines = self.metrics(*flags, ranks=ranks)
            for line in lines:
                self.assertEqual(list(line), [*FIELDS, "indexer_loss", "indexer_grad_norm", "attention_mass_selected",
                                              *FIRST_FIELDS * (line["step"] == 1)])
            self.assertEqual([line["grad_norm"] == 0 for line in lines], [True, False, False])
        config = json.loads((self.folder / "m.config.json").read_text())
        self.assertIn("sparse, 4 keys a query, selected by 2 index heads of 8, 1 warm-up step ", config["attention"]["value"])
        output = self.train(*flags)
        self.assertRegex(output, r"(?m)^step 3/3  loss \d\.\d+  norm \d+\.\d+  indexer \d+\.\d{4}  ")

    def test_gives_microbatches_the_losses_of_one_batch(self):
        flags = ["--steps", "4", "--batch-size", "4", "--lr", "1e-2"]
        for line, reference in zip(self.metrics(*flags, "--grad-accum", "2"), self.metrics(*flags), strict=True):
            self.assertAlmostEqual(line["loss"] / reference["loss"], 1, delta=1e-5)

    def test_evaluates_on_separate_data(self):
        other = self.write("eval.txt", TEXT.upper())
        self.write("run.toml", f'eval-data = ["{other}"]\neval-interval = 2\n')
        output = self.train("--config", "run.toml", "--steps", "3", "--metrics", "m.jsonl", ranks=2)
        lines = [json.loads(line) for line in (self.folder / "m.jsonl").read_text().splitlines()]
        self.assertEqual(["eval_loss" in line for line in lines], [False, True, True])
        self.assertIn(f"eval after step 2  loss {lines[1]['eval_loss']:.4f}", output)
        self.assertRegex(output, r"(?m)^evaluation +\d+ sequences in order, every 2 steps and after the last step")

    def test_gives_every_gradient_sync_the_losses_of_one_rank(self):
        flags = ["--steps", "4", "--batch-size", "16", "--lr", "1e-2", "--grad-accum", "4"]
        expected = self.metrics(*flags)
        for sync in ("last", "reduce-scatter", "each"):
            lines = self.metrics(*flags, "--grad-sync", sync, "--activation-checkpoint", "full",
                                 "--dp-replicate", "2", "--dp-shard", "2", ranks=4)
            for line, reference in zip(lines, expected, strict=True):
                self.assertAlmostEqual(line["loss"] / reference["loss"], 1, delta=1e-5)

    def test_gives_the_same_weights_for_every_sharding(self):
        flags = ["--steps", "3", "--batch-size", "4", "--lr", "1e-2"]
        hashes = {weights_hash(self.train(*flags, *mesh, ranks=4))
                  for mesh in (["--dp-replicate", "2", "--dp-shard", "2"], ["--dp-replicate", "4"],
                               ["--zero-copy", "false", "--prefetch-depth", "0"], ["--node-shared", "on"],
                               ["--node-shared", "off"])}
        self.assertEqual(len(hashes), 1, hashes)

    def test_prints_where_the_weights_lie_and_why(self):
        output = self.train("--steps", "1", ranks=2)
        self.assertRegex(output, r"(?m)^node-shared +in place +\(each shard group is on one node")
        alone = self.run_weft("train", *SMALL, "--steps", "1", "--node-shared", "on")
        self.assertEqual(alone.returncode, 2, alone.stderr)
        self.assertIn("--node-shared: sharing images on each node is required (on), but a shard group of one rank",
                      alone.stderr)

    def test_trains_on_the_built_in_text(self):
        result = self.run_weft("train", *SMALL, "--steps", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("built-in text", result.stdout)

    def test_reads_a_configuration_file(self):
        config = self.write("run.toml", "steps = 2\nlr = 0.0\n")
        self.assertIn("step 2/2", self.train("--config", config))

    def test_repeats_a_run_from_the_flags_that_it_saved(self):
        first = self.train("--steps", "2", "--lr", "0.01", "--metrics", "m.jsonl", "--eval-data", self.text, self.text)
        again = self.run_weft("train", "--config", "m.config.toml", "--metrics", "again.jsonl")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(weights_hash(again.stdout), weights_hash(first))
        flags = [(self.folder / name).read_text() for name in ("m.config.toml", "again.config.toml")]
        self.assertEqual(flags[0], flags[1])

    def test_says_beside_the_saved_flags_which_outputs_must_be_new(self):
        self.train("--steps", "1", "--metrics", "m.jsonl", "--checkpoint-dir", "first")
        self.assertIn("new --checkpoint-dir", (self.folder / "m.config.toml").read_text())
        repeat = ["train", "--config", "m.config.toml", "--metrics", "again.jsonl"]
        self.assert_refused(2, ["--checkpoint-dir first", "name another folder"], *repeat)
        again = self.run_weft(*repeat, "--checkpoint-dir", "second")
        self.assertEqual(again.returncode, 0, again.stderr)

    def test_replaces_the_saved_flags_of_a_run_of_an_earlier_version(self):
        self.write("m.config.toml", "# Flags of a run. To repeat it: weft train --config THIS_FILE --metrics NEW.jsonl\nsteps = 9\n")
        self.train("--steps", "1", "--metrics", "m.jsonl")
        self.assertIn('steps = "1"', (self.folder / "m.config.toml").read_text())

    def test_replaces_no_file_beside_the_metrics_that_no_run_has_written(self):
        own = self.write("m.config.toml", "lr = 0.01\n")
        self.assert_refused(2, ["--metrics m.jsonl", "m.config.toml"], "train", *SMALL, "--steps", "1", "--metrics", "m.jsonl")
        self.assertEqual(own.read_text(), "lr = 0.01\n")

    def test_evaluates_alone(self):
        trained = self.train("--steps", "3", "--eval-data", self.text, "--export-hf", "out")
        loss = re.search(r"^eval after step 3  loss (\S+)$", trained, re.MULTILINE).group(1)
        self.write("out/tokenizer.json", "{}")  # Makes text, such as the built-in one, an error.
        data = self.write("eval.u16", array.array("H", list(TEXT.encode())).tobytes())
        result = self.run_weft("train", "--hf-model", "out", "--steps", "0", "--seq-len", "16", "--eval-data", data)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"eval after step 0  loss {loss}\n", result.stdout)
        self.assert_refused(2, ["--steps 0", "--eval-data"], "train", "--steps", "0")
        self.assert_refused(2, [f"--eval-data {self.text}", "tokenizer"], "train", "--hf-model", "out", "--steps", "0",
                            "--eval-data", self.text)

    def test_writes_events_that_tensorboard_reads(self):
        lines = self.metrics("--steps", "3", "--tensorboard", "events")
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            self.skipTest("tensorboard is not installed")
        events = EventAccumulator(str(self.folder / "events")).Reload()
        losses = events.Scalars("loss")
        self.assertEqual([event.step for event in losses], [1, 2, 3])
        for event, line in zip(losses, lines, strict=True):
            self.assertAlmostEqual(event.value, line["loss"], places=5)
        self.assertIn("bytes/all_gather", events.Tags()["scalars"])

    def test_writes_a_report_and_prints_the_times_of_a_trace(self):
        self.metrics("--steps", "6", "--trace", "t.json", ranks=2)
        result = self.run_weft("report", "m.jsonl", "--trace", "t.json", "-o", "report.html")
        self.assertEqual((result.returncode, result.stdout), (0, "report in report.html\n"), result.stderr)
        self.assertIn("model.layers.1", (self.folder / "report.html").read_text())
        table = self.run_weft("trace", "t.json").stdout
        self.assertRegex(table, r"\nmodel.layers.1 +[0-9. ]+\n")
        self.assertLessEqual(max(map(len, table.splitlines())), 80)

    def test_ends_with_its_own_exit_code_when_the_loss_is_not_finite(self):
        for ranks in (None, 2):
            (self.folder / "m.jsonl").unlink(missing_ok=True)
            result = self.run_weft("train", *SMALL, "--data", self.text, "--lr", "1e6", "--steps", "1000", "--metrics",
                                   "m.jsonl", "--export-hf", "out", ranks=ranks)
            self.assertEqual(result.returncode, 4, result.stdout + result.stderr)
            messages = [line for line in result.stderr.splitlines() if line.startswith("weft:")]
            self.assertEqual(len(messages), 1, result.stderr)
            last = json.loads((self.folder / "m.jsonl").read_text().splitlines()[-1])
            self.assertRegex(messages[0], rf"step {last['step']}: the loss is \S+ and the gradient norm \S+")
            self.assertEqual(self.files(), ["m.config.json", "m.config.toml", "m.jsonl", "text.txt"])


class Quickstart(WeftCase):
    TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"

    def quickstart(self, *flags):
        # The script is the real one. Set-up and build do nothing here, and the program runs one rank.
        nothing = "#!/bin/sh\n"
        scripts = {f"tools/{name}": (self.TOOLS / name).read_text() for name in ("quickstart.sh", "script_functions.sh")}
        for name, content in {**scripts, "tools/setup.sh": nothing, "bin/cmake": nothing,
                              "build/release/bin/weft": f'#!/bin/sh\nshift 7\nexec "{self.weft}" "$@"\n'}.items():
            self.write(name, content).chmod(0o755)
        return subprocess.run(["tools/quickstart.sh", *flags], capture_output=True, text=True, cwd=self.folder, timeout=60,
                              env=os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"})

    def test_lets_its_caller_override_every_flag(self):
        result = self.quickstart("--steps", "1", "--dp-replicate", "1", "--dp-shard=1", "--warmup-steps", "0", "--data", self.text, *SMALL)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("step 1/1 ", result.stdout)
        self.assertRegex(result.stdout, rf"(?m)^data +{len(TEXT)} tokens in 1 file")

    def test_refuses_a_file_of_flags_which_its_own_would_override(self):
        self.write("run.toml", "steps = 1\n")
        for flags in (["--config", "run.toml"], ["--config=run.toml"]):
            result = self.quickstart(*flags)
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            self.assertIn("run build/release/bin/weft train --config", result.stderr)


if __name__ == "__main__":
    sys.exit(main(jobs=4))
