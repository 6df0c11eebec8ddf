#!/usr/bin/env python3
"""Tests of the program from end to end: its output, files and exit codes."""
import array
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import model_folder
from weft_case import SMALL, TEXT, WeftCase, main

FIELDS = ("step loss grad_norm lr tokens tokens_seen tokens_per_s tflops step_ms exposed_comm_ms bytes wire_bytes wire_saved_bytes "
          "cross_domain_bytes copied_bytes peak_buffer_bytes peak_bytes allocated_bytes rss_bytes skipped_steps").split()
FIRST_FIELDS = ["byte_inputs"]  # Of the first line of a run, after the others.


def weights_hash(output):
    return re.search(r"^weights (xxh64:[0-9a-f]{16})$", output, re.MULTILINE).group(1)


class Texts(WeftCase):
    def test_prints_help_and_version(self):
        self.assertIn("Commands:", self.run_weft("--help").stdout)
        self.assertIn("--dp-shard", self.run_weft("train", "--help").stdout)
        self.assertRegex(self.run_weft("--version").stdout, r"^weft \d+\.\d+\.\d+\n$")

    def test_prints_the_version_once_under_mpirun(self):
        result = self.run_weft("--version", ranks=2)
        self.assertEqual(result.stdout.count("weft"), 1)


    def test_prints_no_escape_sequences_of_a_file(self):
        record = {"format": 1, "rank": 0, "ranks": 1, "phase": "", "failure": "\x1b[2J gone", "lanes": [], "operations": []}
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
        self.assertRegex(output, r"(?m)^products +bf16( widened to f32| on AMX tiles)?  \(the CPU has ((no )?instructions for|them)")

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
        self.assertIn("sparse, 4 keys a query, selected by 2 index heads of 8, 1 warm-up steps", config["attention"]["value"])
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
    SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/quickstart.sh"

    def test_lets_its_caller_override_every_flag(self):
        # The script is the real one. Set-up and build do nothing here, and the program runs one rank.
        nothing = "#!/bin/sh\n"
        for name, content in {"tools/quickstart.sh": self.SCRIPT.read_text(), "tools/setup.sh": nothing, "bin/cmake": nothing,
                              "build/release/bin/weft": f'#!/bin/sh\nshift 7\nexec "{self.weft}" "$@"\n'}.items():
            self.write(name, content).chmod(0o755)
        result = subprocess.run(
            ["tools/quickstart.sh", "--steps", "1", "--dp-replicate", "1", "--dp-shard=1", "--warmup-steps", "0",
             "--data", self.text, *SMALL], capture_output=True, text=True, cwd=self.folder, timeout=60,
            env=os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("step 1/1 ", result.stdout)
        self.assertRegex(result.stdout, rf"(?m)^data +{len(TEXT)} tokens in 1 file")


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


class StopRequests(WeftCase):
    def start(self, *flags, step=1):
        """Starts a run that does not end by itself, and returns when it has done `step` steps."""
        (self.folder / "m.jsonl").unlink(missing_ok=True)
        command = self.command(["train", *flags, "--data", self.text, "--steps", "1000000", "--metrics", "m.jsonl",
                                "--export-hf", "out"], None)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                   env=os.environ | {"OMP_NUM_THREADS": "1"})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        while not process.stdout.readline().startswith(f"step {step}/"):
            self.assertIsNone(process.poll(), "the run ended by itself")
        return process

    def test_stops_after_a_whole_step_and_exports_nothing(self):
        for number in (signal.SIGTERM, signal.SIGUSR2):
            process = self.start(*SMALL)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, errors)
            self.assertIn("stopped by a signal", errors)
            for line in (self.folder / "m.jsonl").read_text().splitlines():
                json.loads(line)
            self.assertEqual(self.files(), ["m.config.json", "m.config.toml", "m.jsonl", "text.txt"])

    def test_ends_a_command_without_ranks(self):
        self.train("--steps", "1", "--checkpoint-dir", "ck")
        # Nobody reads the output, so the command waits when the pipe is full.
        command = self.command(["checkpoint", "verify", *["ck"] * 20000], None)
        for number in (signal.SIGTERM, signal.SIGINT):
            with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=self.folder) as process:
                self.addCleanup(process.kill)
                self.assertIn(b"ok", process.stdout.readline())
                process.send_signal(number)
                try:
                    self.assertEqual(process.wait(timeout=20), 130)
                finally:
                    process.kill()

    def size_of(self, name):
        # Set-up creates an output and removes it again, to learn if it can be written.
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).stat().st_size
        return 0

    def test_opens_streams_that_are_closed(self):
        command = self.command(["train", *SMALL, "--data", self.text, "--steps", "1000000", "--metrics", "m.jsonl"], None)
        process = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], cwd=self.folder)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while not self.size_of("m.jsonl"):
            self.assertIsNone(process.poll(), "the run ended by itself")
        self.assertEqual([os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in (0, 1, 2)], ["/dev/null"] * 3)

    def test_has_no_handlers_for_stop_signals_and_blocks_them(self):
        process = self.start(*SMALL)
        unblocked = []
        for status in pathlib.Path(f"/proc/{process.pid}/task").glob("*/status"):
            masks = dict(re.findall(r"^(Sig\w+):\t(\w+)$", status.read_text(), re.MULTILINE))
            for number in STOP_SIGNALS:
                bit = 1 << (number - 1)
                self.assertFalse(int(masks["SigCgt"], 16) & bit, f"{number.name} has a handler")
                if not int(masks["SigBlk"], 16) & bit:
                    unblocked.append(number)
        # While a thread waits in sigwaitinfo, its mask shows the signals as not blocked.
        self.assertEqual(sorted(unblocked), sorted(STOP_SIGNALS))

    def test_survives_signals_at_any_point_of_a_step(self):
        # The steps are mostly matrix products. One such run in five crashed when signals had handlers.
        flags = ["--layers", "2", "--dim", "128", "--heads", "2", "--ffn-dim", "384", "--batch-size", "4"]
        for run in range(16):
            process = self.start(*flags)
            for _ in range(run * 20000):  # Each run is stopped at another point of its step.
                pass
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, f"run {run}: {errors}")


class LostReader(WeftCase):
    def test_ends_a_launch_whose_output_nobody_reads(self):
        command = self.command(["launch", "-n", "1", "--restart-delay", "0", "--", "train", *SMALL, "--data", self.text,
                                "--steps", "1000000", "--checkpoint-dir", "ck"], None)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder) as process:
            self.addCleanup(process.kill)
            self.assertIn("model", process.stdout.readline())
            process.stdout.close()
            errors = process.stderr.read()
        self.assertNotIn("starting attempt", errors)
        self.assertIn("nothing reads its output any more", errors)


class BoundRanks(WeftCase):
    def launch(self, *flags):
        # hwloc makes up the host. A script in the place of mpirun prints its arguments.
        self.write("bin/mpirun", "#!/bin/sh\necho \"$@\"\n")
        (self.folder / "bin/mpirun").chmod(0o755)
        environment = os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HWLOC_SYNTHETIC": "numa:2 core:4 pu:1"}
        command = self.command(["launch", "-n", "8", "--max-restarts", "0", *flags, "--", "train", *SMALL, "--data", self.text], None)
        return subprocess.run(command, capture_output=True, text=True, cwd=self.folder, env=environment, timeout=60)

    def test_a_launch_spreads_ranks_over_the_numa_nodes_of_the_host(self):
        bound = self.launch()
        self.assertIn("--map-by ppr:4:numa --bind-to numa", bound.stdout, bound.stderr)
        self.assertIn("weft launch: binds ranks to the 2 NUMA nodes of each host, 4 on each", bound.stderr)
        unbound = self.launch("--bind", "none")
        self.assertIn("--map-by slot --bind-to none", unbound.stdout, unbound.stderr)
        self.assertNotIn("binds ranks", unbound.stderr)


class LostRanks(WeftCase):
    @staticmethod
    def children(pid):
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def lose(self, signal_number, *flags):
        """Sends a signal to rank 1 of 2 after the first step. Returns the exit code and standard error of mpirun."""
        command = self.command(["train", *SMALL, "--data", self.text, "--steps", "1000000", *flags], 2)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
                              env=os.environ | {"WEFT_TIMEOUT_S": "3"}) as process:
            while not process.stdout.readline().startswith("step 1/"):
                pass
            ranks = [child for child in self.children(process.pid)
                     if b"train" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes()]
            self.assertEqual(len(ranks), 2)
            os.kill(ranks[1], signal_number)
            _, errors = process.communicate(timeout=60)
        return process.returncode, errors

    def test_names_a_rank_that_hangs_and_exits(self):
        for flags in ([], ["--cp", "2", "--cp-scheme", "ring"]):
            code, errors = self.lose(signal.SIGSTOP, *flags)
            self.assertEqual(code, 86, errors)
            self.assertRegex(errors, r"weft: rank 0: .*waits for rank\(s\) 1.*run: weft diagnose weft-dump")
            diagnosis = self.run_weft("diagnose", "weft-dump")
            self.assertEqual(diagnosis.returncode, 0, diagnosis.stderr)
            self.assertRegex(diagnosis.stdout, r"^(rank 1 is late: .* submitted by rank 0 and not by rank 1 \(.*\)"
                                               r"|a rank was late: on rank 0, .* waits for rank\(s\) 1; .*)\n$")

    def test_exits_when_a_rank_dies(self):
        code, errors = self.lose(signal.SIGKILL)
        self.assertNotEqual(code, 0, errors)


class HuggingFace(WeftCase):
    # With a learning rate of 0 the weights stay as they were read.
    KEEP = ["--steps", "1", "--lr", "0", "--seq-len", "16"]

    def load(self, folder, *arguments, ranks=None):
        # Token ids, as text is refused for a model with a tokenizer.
        tokens = self.write("text.u16", array.array("H", list(TEXT.encode())).tobytes())
        result = self.run_weft("train", "--hf-model", folder, *self.KEEP, "--data", tokens, *arguments, ranks=ranks)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return weights_hash(result.stdout)

    def assert_same_weights(self, exported, source):
        written = model_folder.read_safetensors(exported / "model.safetensors")
        read = model_folder.read_safetensors(source / "model.safetensors")
        self.assertEqual(sorted(written), sorted(read))
        for name, (shape, floats) in read.items():
            self.assertEqual(written[name], (shape, floats), name)

    def test_exports_the_weights_that_it_read_on_every_mesh(self):
        source = model_folder.write(self.folder / "model")
        (source / "tokenizer.json").write_text("{}")
        hashes = set()
        meshes = [(None, []), (2, []), (2, ["--zero-copy", "false"]), (3, []), (4, ["--dp-replicate", "2"]),
                  (4, ["--dp-replicate", "2", "--cp", "2"])]
        for number, (ranks, mesh) in enumerate(meshes):
            exported = self.folder / f"out{number}"
            hashes.add(self.load(source, "--export-hf", exported, *mesh, ranks=ranks))
            self.assert_same_weights(exported, source)
            self.assertEqual(sorted(path.name for path in exported.iterdir()),
                             ["config.json", "model.safetensors", "tokenizer.json"])
        self.assertEqual(len(hashes), 1)

    def test_reads_the_same_weights_from_one_file_or_several(self):
        one = model_folder.write(self.folder / "one")
        many = model_folder.write(self.folder / "many", files=3)
        self.assertEqual(self.load(one), self.load(many, ranks=2))

    def test_reads_bf16(self):
        folder = model_folder.write(self.folder / "model", dtype="BF16")
        exported = self.folder / "out"
        self.load(folder, "--export-hf", exported)
        name = "model.layers.0.mlp.up_proj.weight"
        shape, floats = model_folder.read_safetensors(exported / "model.safetensors")[name]
        self.assertEqual(shape, [24, 16])
        for value, exact in zip(floats, model_folder.values(name, len(floats)), strict=True):
            self.assertAlmostEqual(value, exact, delta=abs(exact) / 128)

    def test_exports_no_separate_tensor_for_a_tied_head(self):
        folder = model_folder.write(self.folder / "model", model_folder.CONFIG | {"tie_word_embeddings": True})
        self.load(folder, "--export-hf", "out", ranks=2)
        self.assertNotIn("lm_head.weight", model_folder.read_safetensors(self.folder / "out/model.safetensors"))
        self.assertTrue(json.loads((self.folder / "out/config.json").read_text())["tie_word_embeddings"])

    def test_replaces_an_earlier_export_as_a_whole(self):
        source = model_folder.write(self.folder / "model")
        old = model_folder.write(self.folder / "out", files=2)
        (old / "notes.txt").write_text("mine")
        for run in range(2):
            self.load(source, "--export-hf", "out", ranks=2)
            self.assert_same_weights(old, source)
            self.assertEqual(sorted(path.name for path in old.iterdir()), ["config.json", "model.safetensors", "notes.txt"])
        self.assertEqual((old / "notes.txt").read_text(), "mine")

    def test_exports_into_a_folder_that_holds_its_metrics(self):
        (self.folder / "out").mkdir()
        self.train("--steps", "2", "--metrics", "out/m.jsonl", "--export-hf", "out")
        self.assertEqual(len((self.folder / "out/m.jsonl").read_text().splitlines()), 2)
        self.assertEqual(sorted(path.name for path in (self.folder / "out").iterdir()),
                         ["config.json", "m.config.json", "m.config.toml", "m.jsonl", "model.safetensors"])

    def test_writes_indexers_beside_the_llama_and_reads_them_again(self):
        source = model_folder.write(self.folder / "model")
        sparse = ["--attention", "dsa", "--dsa-index-dim", "8"]
        hashes = {self.load(source, *sparse, "--export-hf", "out", ranks=2)}
        self.assert_same_weights(self.folder / "out", source)
        self.assertEqual(sorted(path.name for path in (self.folder / "out").iterdir()),
                         ["config.json", "indexer.safetensors", "indexer_config.json", "model.safetensors"])
        self.assertEqual(json.loads((self.folder / "out/indexer_config.json").read_text()),
                         {"index_n_heads": 4, "index_head_dim": 8, "index_topk": 512})
        hashes.add(self.load(self.folder / "out", *sparse, ranks=3))
        self.assertEqual(len(hashes), 1)
        self.assertEqual(self.load(self.folder / "out"), self.load(source))

    def test_reads_a_snapshot_of_a_cache(self):
        source = model_folder.write(self.folder / "model")
        snapshot = self.folder / "cache/models--a--b/snapshots/0123"
        snapshot.mkdir(parents=True)
        blobs = self.folder / "cache/models--a--b/blobs"
        blobs.mkdir()
        for path in source.iterdir():
            path.rename(blobs / path.name)
            (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
        self.load(snapshot)

    def test_exports_a_new_model_that_it_can_read_again(self):
        first = weights_hash(self.train("--steps", "2", "--export-hf", "out", ranks=2))
        self.assertEqual(self.load(self.folder / "out"), first)


class Generates(WeftCase):
    """tools/reference/generate_reference.py wrote the expected tokens."""

    CASES = json.loads((pathlib.Path(__file__).parent / "data" / "generated_tokens.json").read_text())["cases"]

    def setUp(self):
        super().setUp()
        self.model = model_folder.write(self.folder / "model", model_folder.CONFIG | model_folder.GENERATOR,
                                        fill=model_folder.random_values)

    def generate(self, *flags, ranks=None):
        result = self.run_weft("generate", "--hf-model", "model", *flags, ranks=ranks)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def tokens(self, case, *flags, ranks=None):
        prompt = ",".join(map(str, case["prompt"]))
        output = self.generate("--prompt-tokens", prompt, "--print-tokens", "--max-new-tokens", "24", *flags, ranks=ranks)
        return [int(line) for line in output.splitlines()]

    def test_generates_the_greedy_tokens_of_transformers(self):
        for case in self.CASES:
            with self.subTest(prompt=case["prompt"]):
                self.assertEqual(self.tokens(case), case["tokens"])

    def test_generates_the_same_tokens_if_ranks_share_the_weights(self):
        case = self.CASES[2]  # Ends early, by a token of eos_token_id.
        self.assertEqual(self.tokens(case, ranks=3), case["tokens"])
        self.assertEqual(self.tokens(case, "--node-shared", "off", "--prefetch-depth", "2", ranks=2), case["tokens"])

    def test_prints_the_text_of_a_model_of_bytes(self):
        case = self.CASES[0]
        text = self.generate("--prompt", bytes(case["prompt"]).decode(), "--max-new-tokens", "1")
        self.assertEqual(text, chr(case["tokens"][0]) + "\n")

    def test_refuses_bad_flags_and_folders(self):
        model = ["generate", "--hf-model", "model"]
        self.assert_refused(2, ["--prompt"], *model)
        self.assert_refused(2, ["256", "255"], *model, "--prompt-tokens", "256", "--print-tokens")
        self.assert_refused(2, ["'x'"], *model, "--prompt-tokens", "1,x")
        self.assert_refused(2, ["128 positions", "127"], *model, "--prompt", "a", "--max-new-tokens", "128")
        self.assert_refused(2, ["--top-k"], *model, "--prompt", "a", "--top-k", "3")
        self.assert_refused(3, ["nothing"], "generate", "--hf-model", "nothing", "--prompt", "a")
        self.write("model/tokenizer.json", "{}")
        self.assert_refused(2, ["tokenizer", "--prompt-tokens"], *model, "--prompt", "a")


if __name__ == "__main__":
    sys.exit(main(jobs=4))
