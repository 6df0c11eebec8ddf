#!/usr/bin/env python3
"""Tests of the program with Hugging Face folders: weights that it reads and exports, text that it generates."""
import array
import json
import pathlib
import sys

import model_folder
from weft_case import TEXT, WeftCase, main, weights_hash


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

    def generate(self, *flags, ranks=None, text=None):
        result = self.run_weft("generate", "--hf-model", "model", *flags, ranks=ranks, text=text)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def tokens(self, case, *flags, ranks=None):
        """Ranks get the prompt by standard input, from which rank 0 alone reads."""
        prompt = ",".join(map(str, case["prompt"]))
        given = ["--prompt-tokens", prompt] if ranks is None else ["--prompt-tokens-file", "-"]
        output = self.generate(*given, "--print-tokens", "--max-new-tokens", "24", *flags, ranks=ranks, text=prompt + "\n")
        return [int(line) for line in output.splitlines()]

    def test_generates_the_greedy_tokens_of_transformers(self):
        only_the_likeliest = ["--temperature", "50", "--top-p", "1e-9"]
        for case, flags in zip(self.CASES, [[], only_the_likeliest, []], strict=True):
            with self.subTest(prompt=case["prompt"]):
                self.assertEqual(self.tokens(case, *flags), case["tokens"])

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
