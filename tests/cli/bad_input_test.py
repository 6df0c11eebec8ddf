#!/usr/bin/env python3
"""Tests of bad input: the program prints one message that names the input, exits with the right code, and leaves no new files."""
import array
import fcntl
import json
import os
import subprocess
import sys

import model_folder
from weft_case import SMALL, WeftCase, main


class BadUsage(WeftCase):
    def test_suggests_the_nearest_flag_command_or_value(self):
        self.assert_refused(2, ["--stpes", "--steps"], "train", "--stpes", "3")
        self.assert_refused(2, ["cosin", "cosine"], "train", "--lr-schedule", "cosin")
        self.assert_refused(2, ["reduce", "reduce-scatter"], "train", "--grad-sync", "reduce")
        self.assert_refused(2, ["trian", "train"], "trian")
        self.assert_refused(2, ["no command"])

    def test_names_the_key_of_a_configuration_file(self):
        config = self.write("run.toml", "stpes = 3\n")
        self.assert_refused(2, ["run.toml", "stpes", "steps"], "train", "--config", config)

    def test_prints_one_message_for_all_ranks(self):
        self.assert_refused(2, ["--stpes", "--steps"], "train", "--stpes", "3", ranks=2)
        self.assert_refused(2, ["train on rank 0", "generate on rank 1"], "train", *SMALL, "--data", self.text, "--steps", "2", ":", "-n",
                            "1", self.weft, "generate", "--hf-model", "no-model", "--prompt", "a", ranks=1)
        self.assert_refused(2, ["--dp-replicate 3", "2 ranks"], "train", "--dp-replicate", "3", ranks=2)

    def test_names_a_mesh_that_does_not_fit_the_ranks(self):
        self.assert_refused(2, ["--dp-shard 3", "1 rank"], "train", "--dp-shard", "3")
        huge = str(2**62)  # Multiplied by 4 it is 0 in 64 bits.
        self.assert_refused(2, [f"--dp-replicate {huge}", "1 rank"], "train", "--dp-replicate", huge, "--cp", "4")

    def test_names_context_parallel_flags_that_do_not_fit(self):
        self.assert_refused(2, ["--cp 3", "2 ranks"], "train", "--cp", "3", ranks=2)
        self.assert_refused(2, ["--cp 9000000000000000000", "1048576"], "train", "--cp", "9000000000000000000",
                            "--cp-scheme", "hybrid")
        self.assert_refused(2, ["--ring-rotate shift", "--cp"], "train", "--ring-rotate", "shift")
        self.assert_refused(2, ["--ulysses-degree 3", "--cp 4", "1, 2, 4"], "train", "--cp", "4", "--ulysses-degree", "3")

    def test_names_flags_of_sparse_attention_that_do_not_fit(self):
        for flag in ("--dsa-topk", "--dsa-index-heads", "--dsa-index-dim", "--dsa-warmup-steps", "--dsa-loss-coef"):
            self.assert_refused(2, [f"{flag} 2", "--attention dsa"], "train", flag, "2")
        self.assert_refused(2, ["--dsa-index-dim 3", "even"], "train", "--attention", "dsa", "--dsa-index-dim", "3")
        for scheme in ("ulysses", "ring"):
            self.assert_refused(2, [f"--cp-scheme {scheme}", "--cp-scheme gather"], "train", "--attention", "dsa", "--cp", "2",
                                "--cp-scheme", scheme, ranks=2)

    def test_names_a_separator_outside_the_vocabulary(self):
        self.assert_refused(2, ["--document-separator 256", "255"], "train", "--document-separator", "256")

    def test_names_a_batch_size_that_ranks_do_not_divide(self):
        self.assert_refused(2, ["--batch-size 3", "use 2 or 4"], "train", "--batch-size", "3", ranks=2)

    def test_names_an_evaluation_interval_without_data(self):
        self.assert_refused(2, ["--eval-interval 5", "--eval-data"], "train", "--eval-interval", "5")

    def test_names_kv_heads_that_do_not_divide_the_heads(self):
        self.assert_refused(2, ["--kv-heads 3", "--heads 4"], "train", "--layers", "1", "--dim", "16", "--heads", "4",
                            "--kv-heads", "3")

    def test_names_sizes_that_no_run_has(self):
        huge = str(2**62)
        for flag in ("--batch-size", "--vocab-size", "--seq-len", "--grad-accum", "--steps", "--warmup-steps"):
            self.assert_refused(2, [f"{flag} {huge}", "at most"], "train", flag, huge)
        sizes = {"--layers": "1", "--dim": "16", "--heads": "2", "--ffn-dim": "24"}
        for flag in sizes:
            words = [word for pair in (sizes | {flag: huge}).items() for word in pair]
            self.assert_refused(2, [f"{flag} {huge}", "at most"], "train", *words)
        self.assert_refused(2, ["parameters"], "train", "--layers", "65536", "--dim", str(2**24), "--heads", "2")
        self.assert_refused(2, ["--batch-size 2147483648", "--grad-accum"], "train", "--batch-size", "2147483648")

    def test_names_a_warm_up_that_is_longer_than_the_run(self):
        self.assert_refused(2, ["--warmup-steps 500", "--steps 2"], "train", "--warmup-steps", "500", "--steps", "2")

    def test_names_a_path_that_is_empty(self):
        for flag in ("--export-hf", "--metrics", "--data", "--hf-model"):
            self.assert_refused(2, [flag, "empty"], "train", flag, "")

    def test_names_a_configuration_file_that_is_no_file(self):
        os.mkfifo(self.folder / "fifo")
        self.assert_refused(3, ["fifo", "FIFO"], "train", "--config", "fifo", ranks=2)
        large = self.write("large.toml", "")
        os.truncate(large, 2**40)
        self.assert_refused(3, ["large.toml", "1099511627776 bytes"], "train", "--config", large)
        for command in (["train"], ["plan", "--ranks", "1"], ["launch", "--max-restarts", "0", "--", "train"]):
            self.assert_refused(3, ["--config none.toml", "No such file"], *command, "--config", "none.toml")

    def test_names_a_bad_timeout(self):
        before = self.files()
        result = self.run_weft("train", env={"WEFT_TIMEOUT_S": "soon"})
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("WEFT_TIMEOUT_S", result.stderr)
        self.assertEqual(self.files(), before)


    def test_names_a_path_in_brackets(self):
        for name in ("[text.txt]", "[a,b]"):
            self.write(name, "other text" * 40)
            self.assert_refused(2, [f"'{name}'", f"./{name}"], "train", "--data", name)
            self.assert_refused(2, [f"'{name}'", f"./{name}"], "train", f"--data={name}")
            config = self.write("run.toml", f'data = ["text.txt", "{name}"]\n')
            self.assert_refused(2, [f"'{name}'", f"./{name}"], "train", "--config", config)
            self.assertIn("2200 tokens in 2 files", self.train("--steps", "1", "--data", f"./{name}"))


class BadData(WeftCase):
    def refuse(self, words, *arguments, ranks=None):
        self.assert_refused(3, words, "train", *SMALL, *arguments, ranks=ranks)

    def test_names_data_that_is_missing_empty_or_short(self):
        self.refuse(["gone.txt", "No such file"], "--data", "gone.txt")
        self.refuse(["empty.txt", "empty"], "--data", self.write("empty.txt", ""))
        self.refuse(["8 tokens", "needs 17"], "--data", self.write("short.txt", "8 tokens"))

    def test_names_evaluation_data_that_is_missing_short_or_of_another_format(self):
        self.refuse(["--eval-data", "gone.txt"], "--eval-data", "gone.txt")
        self.refuse(["--eval-data", "8 tokens"], "--eval-data", self.write("short.txt", "8 tokens"))
        self.refuse(["eval.u16", "token ids"], "--eval-data", self.write("eval.u16", b"\0" * 400))

    def test_names_a_mask_that_no_flag_asks_for(self):
        self.write("a.txt", "text" * 40)
        self.write("a.txt.mask", "\1" * 160)
        self.assert_refused(2, ["a.txt.mask", "--loss-mask true"], "train", *SMALL, "--data", "a.txt", ranks=2)

    def test_names_a_folder_without_files(self):
        (self.folder / "none").mkdir()
        self.refuse(["none", "no files"], "--data", "none")

    def test_names_the_position_of_a_token_outside_the_vocabulary(self):
        tokens = [1] * 100
        tokens[70] = 300
        data = self.write("data.u16", array.array("H", tokens).tobytes())
        self.refuse(["data.u16", "token 300", "position 70"], "--data", data)
        self.refuse(["data.u16", "token 300", "position 70"], "--data", data, ranks=2)

    def test_names_a_token_file_that_is_truncated(self):
        self.refuse(["data.u32", "not a multiple of 4"], "--data", self.write("data.u32", b"x" * 1001))

    def test_does_not_wait_for_a_fifo(self):
        os.mkfifo(self.folder / "fifo")
        for ranks in (None, 2):
            self.refuse(["fifo", "not a file"], "--data", "fifo", ranks=ranks)
            self.refuse(["fifo", "not a file"], "--eval-data", "fifo", ranks=ranks)


class BadModel(WeftCase):
    def refuse(self, words, folder, ranks=None):
        self.assert_refused(3, words, "train", "--hf-model", folder, "--seq-len", "16", "--data", self.text,
                            "--metrics", "m.jsonl", "--export-hf", "out", ranks=ranks)

    def test_names_a_folder_that_is_missing_or_empty(self):
        self.refuse(["no folder 'gone'", "hf download"], "gone")
        (self.folder / "empty").mkdir()
        self.refuse(["config.json"], "empty")

    def test_names_the_key_that_is_not_supported(self):
        folder = model_folder.write(self.folder / "model", model_folder.CONFIG | {"hidden_act": "gelu"})
        self.refuse(["config.json", "hidden_act", "gelu"], folder)

    def test_names_sizes_that_no_model_has(self):
        for number, (key, value) in enumerate([("num_hidden_layers", 2**40), ("head_dim", 2**40), ("vocab_size", 2**40),
                                               ("num_hidden_layers", 2**16)]):
            folder = model_folder.write(self.folder / f"model{number}")
            (folder / "config.json").write_text(json.dumps(model_folder.CONFIG | {key: value}))
            self.refuse(["config.json", f"{key} is {value}"], folder, ranks=2)

    def test_names_a_configuration_that_is_no_small_file(self):
        folder = model_folder.write(self.folder / "model")
        (folder / "config.json").unlink()
        os.mkfifo(folder / "config.json")
        self.refuse(["config.json", "FIFO"], folder, ranks=2)
        (folder / "config.json").unlink()
        (folder / "config.json").write_text("{}")
        os.truncate(folder / "config.json", 2**40)
        self.refuse(["config.json", "1099511627776 bytes"], folder)

    def test_refuses_text_for_a_model_that_has_a_tokenizer(self):
        folder = model_folder.write(self.folder / "model")
        for tokenizer in ("tokenizer.json", "tokenizer.model", "vocab.json"):
            (folder / tokenizer).write_text("{}")
            for data in (["--data", self.text], []):
                self.assert_refused(2, ["--data", "text", f"tools/tokenize.py --tokenizer {folder}/{tokenizer}"], "train",
                                    "--hf-model", folder, "--seq-len", "16", *data, ranks=2)
            (folder / tokenizer).unlink()

    def test_refuses_a_head_that_differs_from_the_embedding_to_which_it_is_tied(self):
        config = model_folder.CONFIG | {"tie_word_embeddings": True}
        tensors = model_folder.shapes(config)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        folder = model_folder.write(self.folder / "model", config, tensors)
        self.refuse(["lm_head.weight", "tie_word_embeddings"], folder)
        self.refuse(["lm_head.weight", "tie_word_embeddings"], folder, ranks=2)

    def test_refuses_links_that_leave_the_folder(self):
        folder = model_folder.write(self.folder / "model", files=2)
        shard = folder / "model-00001-of-00002.safetensors"
        shard.rename(self.folder / "elsewhere")
        shard.symlink_to("../elsewhere")
        self.refuse(["model-00001-of-00002.safetensors", "elsewhere", "outside"], folder)

    def test_names_companions_that_cannot_be_copied(self):
        folder = model_folder.write(self.folder / "model")
        tokens = self.write("text.u16", b"\1\0" * 1000)
        tokenizer = folder / "tokenizer.json"

        def refuse(words):
            self.assert_refused(3, words, "train", "--hf-model", folder, "--seq-len", "16", "--data", tokens, "--export-hf",
                                "out", ranks=2)

        tokenizer.symlink_to("tokenizer.json")
        refuse(["tokenizer.json", "symbolic links"])
        tokenizer.unlink()
        tokenizer.write_text("{}")
        os.truncate(tokenizer, 2**40)
        refuse(["tokenizer.json", "1099511627776 bytes"])
        tokenizer.unlink()
        os.mkfifo(tokenizer)
        refuse(["tokenizer.json", "FIFO"])

    def test_names_weights_that_are_missing(self):
        folder = model_folder.write(self.folder / "model")
        (folder / "model.safetensors").unlink()
        self.refuse(["model.safetensors"], folder)

    def test_names_weights_that_are_truncated(self):
        folder = model_folder.write(self.folder / "model")
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        self.refuse(["model.safetensors", "truncated"], folder)
        self.refuse(["model.safetensors", "truncated"], folder, ranks=2)

    def test_names_a_tensor_of_another_shape_or_type(self):
        tensors = model_folder.shapes(model_folder.CONFIG)
        tensors["model.norm.weight"] = [17]
        self.refuse(["model.norm.weight", "[17]", "[16]"], model_folder.write(self.folder / "shape", tensors=tensors))
        folder = model_folder.write(self.folder / "type")
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"'))
        self.refuse(["I32", "F32, F16 or BF16"], folder)

    def test_names_a_tensor_that_is_missing_or_unexpected(self):
        tensors = model_folder.shapes(model_folder.CONFIG)
        del tensors["model.norm.weight"]
        self.refuse(["model.norm.weight"], model_folder.write(self.folder / "few", tensors=tensors))
        tensors = model_folder.shapes(model_folder.CONFIG) | {"model.layers.0.self_attn.q_proj.bias": [16]}
        self.refuse(["q_proj.bias"], model_folder.write(self.folder / "many", tensors=tensors))

    def test_names_a_sequence_length_above_the_positions_of_the_model(self):
        folder = model_folder.write(self.folder / "model")
        self.assert_refused(2, ["--seq-len 129", "128"], "train", "--hf-model", folder, "--seq-len", "129", "--data",
                            self.text)


class BadOutput(WeftCase):
    def refuse(self, words, *arguments, ranks=None):
        self.assert_refused(3, words, "train", *SMALL, "--data", self.text, *arguments, ranks=ranks)

    def test_names_a_metrics_file_that_cannot_be_written(self):
        self.refuse(["none/m.jsonl"], "--metrics", "none/m.jsonl")
        self.refuse(["text.txt/m.jsonl"], "--metrics", self.text / "m.jsonl", ranks=2)

    def test_names_an_export_folder_that_cannot_be_made(self):
        self.refuse(["text.txt/out"], "--export-hf", self.text / "out")
        self.refuse(["text.txt"], "--export-hf", self.text)

    def test_names_an_export_folder_where_nothing_can_be_made(self):
        self.refuse(["/proc/x"], "--export-hf", "/proc/x", ranks=2)

    def test_names_a_folder_in_a_working_folder_that_was_removed(self):
        for flag in ("--export-hf", "--checkpoint-dir"):
            (self.folder / "gone").mkdir()
            command = self.command(["train", *SMALL, "--data", self.text, flag, "out"], None)
            result = subprocess.run(["sh", "-c", 'cd gone && rmdir ../gone && exec "$@"', "sh", *command], cwd=self.folder,
                                    capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 3, result.stderr)
            for word in (flag, "out", "working folder", "absolute path"):
                self.assertIn(word, result.stderr)

    def test_refuses_the_export_folder_of_another_run(self):
        (self.folder / "out").mkdir()
        descriptor = os.open(self.folder / "out", os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self.assert_refused(2, ["--export-hf", "another run", "out"], "train", *SMALL, "--data", self.text, "--export-hf",
                            "out", ranks=2)

    def test_refuses_metrics_of_an_earlier_run_and_links(self):
        self.write("m.jsonl", "{}\n")
        self.assert_refused(2, ["--metrics m.jsonl", "earlier run"], "train", *SMALL, "--data", self.text, "--metrics",
                            "m.jsonl", ranks=2)
        self.write("empty", "")
        (self.folder / "link.jsonl").symlink_to("empty")
        self.refuse(["link.jsonl", "link"], "--metrics", "link.jsonl")

    def test_refuses_metrics_of_another_run(self):
        metrics = self.write("m.jsonl", "")
        descriptor = os.open(metrics, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self.assert_refused(2, ["--metrics m.jsonl", "another run"], "train", *SMALL, "--data", self.text, "--metrics",
                            "m.jsonl")

    def test_refuses_metrics_that_only_some_ranks_write(self):
        train = ["train", *SMALL, "--data", self.text]
        self.assert_refused(2, ["--metrics is not given on rank 0 and given on rank 1"], *train, ":", "-n", "1", self.weft,
                            *train, "--metrics", "m.jsonl", ranks=1)

    def test_names_a_file_of_the_export_that_cannot_be_replaced(self):
        (self.folder / "out/model.safetensors").mkdir(parents=True)
        self.refuse(["out/model.safetensors"], "--export-hf", "out")


class BadResume(WeftCase):
    def test_names_a_checkpoint_after_the_last_step(self):
        run = [*SMALL, "--data", self.text, "--checkpoint-dir", "ck"]
        self.train("--steps", "3", "--checkpoint-dir", "ck")
        self.assert_refused(2, ["--steps 2", "ck/step-00000003", "after step 3"], "train", *run, "--steps", "2", "--resume",
                            "auto")
        # The run may have been killed before its export.
        self.train("--steps", "3", "--checkpoint-dir", "ck", "--resume", "auto", "--export-hf", "out")
        self.assertIn("out/model.safetensors", self.files())

    def test_evaluates_a_checkpoint_of_the_last_step(self):
        run = ["--steps", "3", "--checkpoint-dir", "ck", "--eval-data", self.text]
        evaluation = [line for line in self.train(*run).splitlines() if line.startswith("eval after step 3")]
        self.assertEqual(len(evaluation), 1)
        self.assertIn(evaluation[0], self.train(*run, "--resume", "auto").splitlines())
        self.assertIn("eval after step 3", self.train(*run, "--batch-size", "1", "--cp", "2", "--resume", "auto", ranks=2))


class OutputsOverInputs(WeftCase):
    """The program refuses an output that would replace one of the run's files, whatever paths lead to it."""

    def contents(self):
        return {str(path): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def refuse(self, words, *arguments, ranks=None):
        before = self.contents()
        self.assert_refused(2, words, "train", "--seq-len", "16", "--steps", "1", *arguments, ranks=ranks)
        self.assertEqual(self.contents(), before)

    def test_refuses_to_export_into_the_source_model(self):
        model_folder.write(self.folder / "hf")
        (self.folder / "link").symlink_to("hf")
        for target in ("hf/", "./hf", "hf/.", "link", "hf/new/..", self.folder / "hf"):
            self.refuse(["--export-hf", "--hf-model"], "--hf-model", "hf", "--data", self.text, "--export-hf", target)
        self.refuse(["--export-hf", "--hf-model"], "--hf-model", "link/", "--data", self.text, "--export-hf", "hf",
                    ranks=2)

    def test_refuses_to_export_over_a_checkpoint(self):
        checkpoints = ["--checkpoint-dir", "ck", "--checkpoint-interval", "1"]
        self.train("--steps", "2", *checkpoints)
        train = [*SMALL, "--data", self.text]
        for target in ("ck/step-00000002", "ck/step-00000001/", "ck/step-00000003"):
            self.refuse(["--export-hf", "step-0000000", "another"], *train, "--export-hf", target, *checkpoints, "--resume",
                        "auto")
        self.refuse(["--export-hf", "ck/step-00000001"], *train, "--export-hf", "ck/step-00000001")
        self.assert_refused(2, ["ck/step-00000001", "another folder"], "checkpoint", "export-hf", "ck/step-00000002",
                            "ck/step-00000001")
        self.assert_refused(2, ["empty"], "checkpoint", "export-hf", "ck/step-00000002", "")
        self.assertEqual(self.run_weft("checkpoint", "verify", "ck").returncode, 0)

    def test_refuses_to_write_metrics_over_a_file_that_it_reads(self):
        (self.folder / "link.txt").symlink_to("text.txt")
        os.link(self.text, self.folder / "hard.txt")
        for metrics in ("text.txt", "./text.txt", "link.txt", "hard.txt"):
            self.refuse(["--metrics", "--data"], "--data", "text.txt", "--metrics", metrics)
        self.refuse(["--metrics", "--data"], "--data", ".", "--metrics", "text.txt")
        other = self.write("eval.txt", "x" * 100)
        self.refuse(["--metrics", "--eval-data"], "--data", "text.txt", "--eval-data", other, "--metrics", "eval.txt")
        config = self.write("run.toml", "steps = 1\n")
        self.refuse(["--metrics", "--config"], "--data", "text.txt", "--config", config, "--metrics", "run.toml")

    def test_refuses_to_write_the_configuration_over_a_file_that_it_reads(self):
        self.write("run.config.json", "x" * 100)
        self.refuse(["run.config.json", "--data"], "--data", "run.config.json", "--metrics", "run.jsonl")

    def test_refuses_to_export_over_data_or_metrics(self):
        self.write("out/config.json", "x" * 100)
        self.refuse(["--export-hf", "--data"], *SMALL[:-2], "--data", "out", "--export-hf", "out")
        self.refuse(["--export-hf", "--metrics"], *SMALL[:-2], "--data", self.text, "--metrics", "out/config.json",
                    "--export-hf", "out")

    def test_exports_beside_links_to_the_source(self):
        source = model_folder.write(self.folder / "hf")
        (self.folder / "out").mkdir()
        for name in ("config.json", "model.safetensors"):
            (self.folder / "out" / name).symlink_to(source / name)
        before = (source / "model.safetensors").read_bytes()
        result = self.run_weft("train", "--hf-model", "hf", "--seq-len", "16", "--steps", "1", "--data", self.text,
                               "--export-hf", "out")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((source / "model.safetensors").read_bytes(), before)
        self.assertFalse((self.folder / "out/model.safetensors").is_symlink())


if __name__ == "__main__":
    sys.exit(main(jobs=4))
