#!/usr/bin/env python3
"""Compares examples/gpt2 with transformers' GPT2LMHeadModel and torch.optim.AdamW.

    gpt2_test.py GPT2 MPIRUN     compares with data/gpt2.json, and with transformers itself where it is installed
    gpt2_test.py --write         makes data/gpt2.json, with torch and transformers
"""
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cli"))
import model_folder  # noqa: E402

FIGURES = HERE / "data" / "gpt2.json"
SOURCE = HERE.parents[1] / "examples" / "gpt2.cc"
CONFIG = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 61, "n_positions": 32, "n_embd": 128,
          "n_layer": 2, "n_head": 2, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": 1,
          "eos_token_id": 2}
STEPS, SAMPLES, LENGTH = 10, 4, 24
PROGRAM = MPIRUN = ""


def shapes():
    dim = CONFIG["n_embd"]
    tensors = {"wte.weight": [CONFIG["vocab_size"], dim], "wpe.weight": [CONFIG["n_positions"], dim], "ln_f.weight": [dim],
               "ln_f.bias": [dim]}
    for layer in range(CONFIG["n_layer"]):
        for name, sizes in {"attn.c_attn": (dim, 3 * dim), "attn.c_proj": (dim, dim), "mlp.c_fc": (dim, 4 * dim),
                            "mlp.c_proj": (4 * dim, dim)}.items():
            tensors |= {f"h.{layer}.{name}.weight": list(sizes), f"h.{layer}.{name}.bias": [sizes[1]]}
        for name in ("ln_1", "ln_2"):
            tensors |= {f"h.{layer}.{name}.weight": [dim], f"h.{layer}.{name}.bias": [dim]}
    return {"transformer." + name: shape for name, shape in tensors.items()}


def values(name, count):
    """Values for which transformers would have other losses if a weight were transposed, or a bias were left out."""
    draw = random.Random(name).random
    gain = ".ln_" in name and name.endswith("weight")
    return [(draw() - 0.5) * 0.3 + gain for _ in range(count)]


def make_folder(path, **keys):
    return model_folder.write(path, CONFIG | keys, shapes(), fill=values)


def transformers_figures(folder):
    """[loss, gradient norm] of the steps of the example, and the logits of the trained model."""
    import torch
    import transformers
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    figures = []
    for step in range(1, STEPS + 1):
        tokens = torch.tensor([[(sample * 31 + position * position * 7) % CONFIG["vocab_size"] for position in range(LENGTH + 1)]
                               for sample in range(step * SAMPLES, (step + 1) * SAMPLES)])
        logits = model(input_ids=tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        optimizer.step()
        figures.append([loss.item(), norm.item()])
    return figures, logits_of(model)


def logits_of(model):
    import torch
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(30).view(2, 15)).logits


class Gpt2(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.source = make_folder(self.folder / "source")

    def run_example(self, output, dropout=0, ranks=2, source=None):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "WEFT_TIMEOUT_S": "60"}
        return subprocess.run([MPIRUN, "-n", str(ranks), PROGRAM, source or self.source, self.folder / output, str(dropout)],
                              capture_output=True, text=True, timeout=120, env=environment)

    def figures(self, *arguments, **options):
        result = self.run_example(*arguments, **options)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        found = re.findall(r"^step \d+  loss ([\d.]+)  norm ([\d.]+)\r?$", result.stdout, re.MULTILINE)
        self.assertEqual(len(found), STEPS)
        return [[float(loss), float(norm)] for loss, norm in found]

    def assert_close(self, actual, expected, tolerance):
        for pair, reference in zip(actual, expected, strict=True):
            for value, other in zip(pair, reference, strict=True):
                self.assertAlmostEqual(value / other, 1, delta=tolerance)

    def test_has_the_losses_and_norms_of_transformers_and_exports_what_it_loads(self):
        source = make_folder(self.folder / "bf16", torch_dtype="bfloat16")
        self.assert_close(self.figures("tuned", source=source), json.loads(FIGURES.read_text())["figures"], 1e-4)
        exported = model_folder.read_safetensors(self.folder / "tuned" / "model.safetensors")
        self.assertEqual({name: shape for name, (shape, _) in exported.items()}, shapes())
        self.assertEqual(json.loads((self.folder / "tuned" / "config.json").read_text()), CONFIG | {"dtype": "float32"})
        try:
            import transformers
        except ImportError:
            self.skipTest("the transformers package is not installed")
        figures, logits = transformers_figures(self.source)
        self.assert_close(figures, json.loads(FIGURES.read_text())["figures"], 1e-4)
        loaded = logits_of(transformers.GPT2LMHeadModel.from_pretrained(self.folder / "tuned"))
        self.assertLess((loaded - logits).abs().max() / logits.abs().max(), 1e-4)

    def test_has_the_same_losses_with_dropout_on_one_rank_and_on_four(self):
        one_rank = self.figures("tuned1", dropout=0.2, ranks=1)
        self.assert_close(self.figures("tuned4", dropout=0.2, ranks=4), one_rank, 1e-4)
        undropped = json.loads(FIGURES.read_text())["figures"]
        self.assertGreater(abs(one_rank[0][0] / undropped[0][0] - 1), 1e-3)

    def test_refuses_what_it_cannot_train_or_export(self):
        tensors = shapes()
        del tensors["transformer.h.1.mlp.c_fc.bias"]
        broken = model_folder.write(self.folder / "broken", CONFIG, tensors, fill=values)
        result = self.run_example("tuned", source=broken)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("has the tensor 'transformer.h.1.mlp.c_fc.bias'", result.stderr)
        for arguments, message in (({"ranks": 3}, "run it with 1, 2 or 4 ranks"), ({"dropout": "0.5x"}, "usage: gpt2")):
            result = self.run_example("tuned", **arguments)
            self.assertEqual(result.returncode, 1, result.stdout)
            self.assertIn(message, result.stderr)
        result = self.run_example("source")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("is the source of the export", result.stderr)

    def test_has_fewer_than_80_lines_from_the_model_to_the_export(self):
        lines = SOURCE.read_text().split("using namespace weft;\n")[1].split("int main")[0].splitlines()
        self.assertLess(len([line for line in lines if line]), 80)


def write_figures():
    import torch
    import transformers
    with tempfile.TemporaryDirectory() as folder:
        figures, _ = transformers_figures(make_folder(pathlib.Path(folder) / "source"))
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__, "script": "tests/examples/gpt2_test.py"}
    FIGURES.write_text(json.dumps({"made_with": made_with, "figures": figures}) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write_figures()
    else:
        PROGRAM, MPIRUN = sys.argv[1:3]
        unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
