#!/usr/bin/env python3
"""Compares weft train on a Hugging Face folder with transformers' models and torch.optim.AdamW: losses, gradient norms, and
the exported weights, which transformers must load. Exits with 77 (skipped) where torch or transformers is not installed.
"""
import array
import inspect
import json
import sys
import unittest
import unittest.mock

try:
    import tokenizers
    import torch
    import transformers
except ImportError as missing:
    print(f"{missing.name} is not installed (pip install torch==2.13.0 transformers)")
    sys.exit(77)

try:
    import peft
except ImportError:
    peft = None

from weft_case import WeftCase, main

STEPS, SEQUENCES, LENGTH, VOCABULARY = 10, 4, 24, 131
LR, BETAS, DECAY, CLIP, WARMUP = 3e-3, (0.9, 0.95), 0.1, 0.7, 2
# Largest difference of logits, relative to the largest logit.
LOGITS_TOLERANCE = 1e-4
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64, "rope_theta": 5000.0}


# Model types beside Llama, and changes to the sizes of make_model.
ARCHITECTURES = {
    "mistral": {"sliding_window": 7},
    "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
    "gemma": {"head_dim": 14, "tie_word_embeddings": True, "pad_token_id": None},
}


def make_model(model_type="llama", **changes):
    torch.manual_seed(1)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 60, "intermediate_size": 101, "num_hidden_layers": 2,
             "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 128,
             "tie_word_embeddings": False, "attention_dropout": 0.0}
    config = transformers.AutoConfig.for_model(model_type, **sizes | changes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.1)  # transformers starts biases at zero.
    return model


def save_tokenizer(folder):
    """A tokenizer whose ids of <s> and </s> are those of no config.json by default."""
    words = [f"w{i}" for i in range(60)] + ["<s>", "</s>"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)


def adamw(parameters, lr=LR):
    return torch.optim.AdamW(parameters, lr=lr, betas=BETAS, eps=1e-8, weight_decay=DECAY)


def optimizers_of(kind, model):
    """PyTorch's optimizers that correspond to `--optimizer KIND`."""
    if kind == "sgd":
        return [torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, nesterov=True, weight_decay=DECAY)]
    if kind == "muon":
        outside = ("embed_tokens", "lm_head")
        is_matrix = {name: p.ndim == 2 and not any(word in name for word in outside) for name, p in model.named_parameters()}
        matrices = [p for name, p in model.named_parameters() if is_matrix[name]]
        others = [p for name, p in model.named_parameters() if not is_matrix[name]]
        return [torch.optim.Muon(matrices, lr=LR, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"), adamw(others, lr=LR / 2)]
    return [adamw(model.parameters())]


def orthogonalize_in_f32():
    """weft iterates in f32, PyTorch in bf16: this replaces the cast, for a comparison to more digits."""
    muon = sys.modules["torch.optim._muon"]
    source = inspect.getsource(muon._zeropower_via_newtonschulz)
    changed = source.replace("grad.bfloat16()", "grad.clone()")
    assert changed != source
    return unittest.mock.patch.object(muon, "_zeropower_via_newtonschulz", defined_by(changed, muon))


def defined_by(source, module):
    names = dict(vars(module))
    exec(source, names)
    return names["_zeropower_via_newtonschulz"]


def train(model, tokens, kind="adamw"):
    """Losses and gradient norms of consecutive windows, in the order of `weft train --shuffle false`."""
    optimizers = optimizers_of(kind, model)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    figures = []
    for step in range(STEPS):
        for group, lr in zip(groups, rates, strict=True):
            group["lr"] = lr * min(1, (step + 1) / WARMUP)
        first = step * SEQUENCES * LENGTH
        inputs = tokens[first:first + SEQUENCES * LENGTH].view(SEQUENCES, LENGTH)
        targets = tokens[first + 1:first + 1 + SEQUENCES * LENGTH].view(-1)
        logits = model(input_ids=inputs).logits.float().view(-1, VOCABULARY)
        loss = torch.nn.functional.cross_entropy(logits, targets)
        model.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for optimizer in optimizers:
            optimizer.step()
        figures.append((loss.item(), norm.item()))
    return figures


class Transformers(WeftCase):
    def compare(self, model, meshes, name="model", kind="adamw", flags=()):
        source = self.folder / name
        model.save_pretrained(source)
        tokens = torch.randint(0, VOCABULARY, (STEPS * SEQUENCES * LENGTH + 1,), generator=torch.Generator().manual_seed(2))
        data = self.write("tokens.u16", array.array("H", tokens.tolist()).tobytes())
        expected = train(model, tokens, kind)
        for number, (ranks, mesh) in enumerate(meshes):
            with self.subTest(mesh=mesh):
                exported = self.folder / f"{name}-exported{number}"
                result = self.run_weft(
                    "train", "--hf-model", source, "--data", data, "--shuffle", "false", "--seq-len", LENGTH,
                    "--batch-size", SEQUENCES, "--steps", STEPS, "--lr", LR, "--warmup-steps", WARMUP,
                    "--weight-decay", DECAY, "--clip-grad-norm", CLIP, "--metrics", f"{name}{number}.jsonl",
                    "--export-hf", exported, "--optimizer", kind, *flags, *mesh, ranks=ranks)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                self.assert_figures(self.folder / f"{name}{number}.jsonl", expected)
                self.assert_weights(exported, model)

    def assert_figures(self, metrics, expected):
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        self.assertEqual(len(lines), STEPS)
        for line, (loss, norm) in zip(lines, expected, strict=True):
            self.assertAlmostEqual(line["loss"], loss, delta=1e-4 * loss)
            self.assertAlmostEqual(line["grad_norm"], norm, delta=1e-4 * norm)

    def assert_weights(self, exported, model):
        exported_model = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
        self.assertIs(type(exported_model), type(model))
        loaded = exported_model.state_dict()
        trained = model.state_dict()
        self.assertEqual(sorted(loaded), sorted(trained))
        for name, weight in trained.items():
            # AdamW moves a weight by about lr however small its gradient is, so rounding of tiny gradients shows in full.
            torch.testing.assert_close(loaded[name], weight, rtol=1e-3, atol=3e-4, msg=name)

    def test_trains_like_transformers_on_one_rank_and_sharded(self):
        self.compare(make_model(), [(None, []), (2, []), (4, ["--dp-replicate", "2"]), (4, ["--dp-replicate", "4"])])

    def test_trains_like_torchs_sgd_and_muon(self):
        self.compare(make_model(), [(2, [])], "sgd", "sgd", ["--momentum", 0.9, "--nesterov", "true"])
        with orthogonalize_in_f32():
            self.compare(make_model("qwen2", tie_word_embeddings=True), [(4, ["--dp-replicate", "2"])], "muon", "muon",
                         ["--adamw-lr", LR / 2, "--muon-lr-scale", "match_rms_adamw"])

    def test_trains_like_transformers_with_a_tied_head_and_scaled_rope(self):
        model = make_model(hidden_size=48, num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True,
                           rope_parameters=LLAMA3_ROPE)
        self.compare(model, [(2, ["--zero-copy", "false"])])

    def test_trains_other_architectures_like_transformers(self):
        for model_type, changes in ARCHITECTURES.items():
            with self.subTest(model_type=model_type):
                model = make_model(model_type, **changes)
                self.compare(model, [(2, ["--cp", "2"])], name=model_type)
                self.assert_logits(self.folder / f"{model_type}-exported0", model)

    def assert_logits(self, exported, model):
        loaded = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
        tokens = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            logits, expected = (m.eval()(input_ids=tokens).logits for m in (loaded, model))
        difference = (logits - expected).abs().max() / expected.abs().max()
        self.assertLess(difference.item(), LOGITS_TOLERANCE)

    def test_exports_a_new_model_that_transformers_loads_with_its_tokenizer(self):
        # A small SmolLM2: a Llama with a tied head and another theta.
        source = self.folder / "new"
        make_model(tie_word_embeddings=True, vocab_size=62, rope_theta=100000, initializer_range=0.04).config.save_pretrained(source)
        save_tokenizer(source)
        data = self.write("tokens.u16", array.array("H", [i * i % 60 for i in range(1000)]).tobytes())
        for dtype, torch_dtype in (("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)):
            with self.subTest(dtype=dtype):
                exported = self.folder / f"new-{dtype}"
                result = self.run_weft("train", "--hf-model", source / "config.json", "--data", data, "--seq-len", "16",
                                       "--steps", "2", "--export-hf", exported, "--export-dtype", dtype)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                model = transformers.AutoModelForCausalLM.from_pretrained(exported)
                tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
                self.assertEqual(model.dtype, torch_dtype)
                self.assertEqual((model.config.bos_token_id, model.config.eos_token_id), (60, 61))
                self.assertEqual(model.config.rope_parameters["rope_theta"], 100000)
                ids = model.generate(**tokenizer("w1 w2 w3", return_tensors="pt"), max_new_tokens=4, do_sample=False)
                self.assertLessEqual(ids.shape[1], 7)
                self.assertTrue(tokenizer.decode(ids[0]).startswith("w1 w2 w3"))

    @unittest.skipIf(peft is None, "peft is not installed")
    def test_trains_adapters_that_peft_loads_with_equal_logits(self):
        source = self.folder / "base"
        make_model("qwen2").save_pretrained(source)
        torch.manual_seed(4)
        started = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32),
                                      peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj"]))
        started.save_pretrained(self.folder / "start")
        tokens = torch.randint(0, VOCABULARY, (STEPS * SEQUENCES * LENGTH + 1,), generator=torch.Generator().manual_seed(2))
        data = self.write("tokens.u16", array.array("H", tokens.tolist()).tobytes())
        flags = ["--hf-model", source, "--lora-adapter", self.folder / "start", "--data", data, "--shuffle", "false",
                 "--seq-len", LENGTH, "--batch-size", SEQUENCES, "--steps", STEPS, "--lr", LR, "--warmup-steps", WARMUP,
                 "--weight-decay", DECAY, "--clip-grad-norm", CLIP, "--dp-replicate", "2"]
        for name, more in (("adapters", []), ("merged", ["--export-merged", "true"])):
            result = self.run_weft("train", *flags, "--metrics", f"{name}.jsonl", "--export-hf", self.folder / name, *more,
                                   ranks=4)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assert_figures(self.folder / "adapters.jsonl", train(started, tokens))
        loaded = peft.PeftModel.from_pretrained(
            transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32), self.folder / "adapters")
        self.assert_logits(self.folder / "merged", loaded)
        self.assert_logits(self.folder / "merged", started)

    def test_trains_like_transformers_if_sparse_attention_selects_all_keys(self):
        self.compare(make_model(), [(2, ["--attention", "dsa", "--dsa-topk", LENGTH, "--dsa-index-dim", "8"])])


if __name__ == "__main__":
    sys.exit(main())
