#!/usr/bin/env python3
"""Trains a model of Hugging Face transformers with weft.fully_shard. Needs transformers.

    torchrun --nproc-per-node 2 examples/torch_hugging_face.py FOLDER [--model llama|qwen3] [--steps N] [--replicas N]

It goes on from the newest FOLDER/checkpoint-STEP, which any number of ranks may have written, and saves another one at the end.
FOLDER/model then has the whole weights, for `from_pretrained`. The text is as in torch_llama.py.
"""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

import weft
import weft.torch  # Registers the backend "weft".

LICENSES = Path("/usr/share/common-licenses")
MODELS = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


def make_model(name: str) -> PreTrainedModel:
    """A small model of bytes, with random weights. LlamaForCausalLM.from_pretrained(...) would go on from given ones."""
    make_config, make = MODELS[name]
    torch.manual_seed(0)
    return make(
        make_config(
            vocab_size=256,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=512,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def read_text() -> Tensor:
    files = sorted(path for path in LICENSES.glob("*") if path.is_file() and not path.is_symlink())
    text = b"\n".join(path.read_bytes() for path in files)
    if len(text) < 1 << 14:
        raise SystemExit(f"{LICENSES} has {len(text)} bytes of text, which are too few")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def rows_of_rank(text: Tensor, step: int, batch: int, tokens: int) -> Tensor:
    """This rank's rows of the step's batch, which is the same for any number of ranks."""
    first = torch.randint(len(text) - tokens, (batch, 1), generator=torch.Generator().manual_seed(step))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return text[first + torch.arange(tokens)][rank * batch // ranks : (rank + 1) * batch // ranks]


def checkpoints_of(folder: Path) -> list[Path]:
    """Those that are whole, the newest one last."""
    steps = [path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")]
    return [folder / f"checkpoint-{step}" for step in sorted(int(step) for step in steps if step.isdecimal())]


def save_checkpoint(state: dict, folder: Path) -> None:
    """Saves in a folder of its own and names it at the end: a run that is killed meanwhile leaves the older checkpoint as it was."""
    older = checkpoints_of(folder)
    checkpoint = folder / f"checkpoint-{state['step']}"
    partial = checkpoint.with_suffix(".partial")
    dcp.save(state, storage_writer=dcp.FileSystemWriter(partial, overwrite=True))
    if dist.get_rank() == 0:  # All ranks have written when dcp.save ends on rank 0.
        partial.rename(checkpoint)
        for path in older:
            shutil.rmtree(path)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="llama", choices=MODELS)
    parser.add_argument("--steps", type=int, default=30, help="steps to train, at least 1")
    parser.add_argument("--replicas", type=int, default=1, help="groups of ranks that have all shards each")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step, which the ranks divide")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a sequence")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Returns the losses of the steps."""
    options = parse_arguments(arguments)
    text = read_text()
    dist.init_process_group("weft")
    ranks = dist.get_world_size()
    if options.steps < 1:
        raise SystemExit(f"--steps is {options.steps}, but must be at least 1")
    if options.batch % ranks or ranks % options.replicas:
        raise SystemExit(f"{ranks} ranks must divide into --replicas {options.replicas}, and --batch {options.batch} among the ranks")
    mesh = init_device_mesh("cpu", (options.replicas, ranks // options.replicas), mesh_dim_names=("replicate", "shard"))

    model = make_model(options.model)
    for layer in model.model.layers:
        weft.fully_shard(layer, mesh=mesh)
    weft.fully_shard(model, mesh=mesh)
    optimizer = weft.AdamW(model.parameters(), lr=3e-3)

    checkpoints = checkpoints_of(options.folder)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True)) | {"step": 0}
    if checkpoints:
        dcp.load(state, checkpoint_id=checkpoints[-1])
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    losses = []
    first = state["step"] + 1
    for step in range(first, first + options.steps):
        tokens = rows_of_rank(text, step, options.batch, options.tokens)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        weft.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
        if dist.get_rank() == 0 and (step % 10 == 0 or step == first):
            print(f"step {step:3d}  loss {losses[-1]:.3f}", flush=True)

    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    state["step"] = first + options.steps - 1
    save_checkpoint(state, options.folder)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        model.save_pretrained(options.folder / "model", state_dict=whole)
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
