#!/usr/bin/env python3
"""Generates tokens with transformers' LlamaForCausalLM.generate (greedy), and writes the reference for weft's tests.

    pip install torch==2.13.0 transformers
    tools/reference/generate_reference.py tests/cli/data/generated_tokens.json

The weights come from tests/cli/model_folder.py, which the test also uses. The file therefore contains prompts and tokens
only. A case whose two largest logits are closer than 1e-3 is refused: rounding could swap them.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "cli"))
import model_folder  # noqa: E402

NEW_TOKENS, MARGIN = 24, 1e-3
PROMPTS = [[84, 104, 101, 32, 113], [7], list(range(40, 71))]


def generate(model, prompt):
    ids = torch.tensor([prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False,
                            output_logits=True, return_dict_in_generate=True, pad_token_id=0)
    for logits in output.logits:
        first, second = logits[0].float().topk(2).values.tolist()
        if first - second < MARGIN:
            raise SystemExit(f"prompt {prompt}: logits {first} and {second} are too close; choose another prompt")
    return output.sequences[0, len(prompt):].tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    output = parser.parse_args().output
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        source = model_folder.write(pathlib.Path(folder) / "model", model_folder.CONFIG | model_folder.GENERATOR,
                                    fill=model_folder.random_values)
        model = transformers.LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)
        cases = [{"prompt": prompt, "tokens": generate(model, prompt)} for prompt in PROMPTS]
    output.parent.mkdir(exist_ok=True)
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__}
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    output.write_text(f'{{"made_with": {json.dumps(made_with)}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
