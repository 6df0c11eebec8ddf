"""Functions that the ranks run: options of training with models of transformers, with weft.fully_shard and with FSDP2.

Both run over the backend "weft". On two ranks they add in one order, so that float32 results have the same bits.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model_bodies import VOCABULARY, batch_of, make_model, rows_of_rank
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

import weft

SHARDS = {"weft": weft.fully_shard, "fsdp2": torch_fully_shard}


def shard_blocks(model: PreTrainedModel, shard: Callable, **options: Any) -> PreTrainedModel:
    for layer in model.model.layers:
        shard(layer, **options)
    return shard(model, **options)


def loss_of(model: nn.Module, step: int) -> Tensor:
    tokens = rows_of_rank(batch_of(step))
    return model(input_ids=tokens, labels=tokens).loss


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, microbatches: int = 1, clip: bool = False) -> list[float]:
    """Losses, gradient norms, and checksums of the weights."""
    results = []
    for step in range(3):
        for microbatch in range(microbatches):
            model.set_requires_gradient_sync(microbatch + 1 == microbatches)
            loss = loss_of(model, microbatches * step + microbatch) / microbatches
            loss.backward()
            results.append(loss.item())
        if clip:
            results.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor().item())
        optimizer.step()
        optimizer.zero_grad()
    return results + [param.full_tensor().double().sum().item() for param in model.parameters()]


def options(kind: str, option: str) -> dict[str, list[float]]:
    """Results with weft.fully_shard, with FSDP2, and without the option, which must then matter or not."""
    results = {}
    for name, shard in [*SHARDS.items(), ("without", weft.fully_shard)]:
        chosen = option if name != "without" else ""
        model = make_model(kind)
        policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)} if chosen == "bf16" else {}
        if chosen.startswith("checkpointed"):
            model.gradient_checkpointing_enable({"use_reentrant": chosen == "checkpointed_reentrant"})
        shard_blocks(model, shard, **policy)
        optimizer = make_optimizer(model)  # After an evaluation, FSDP2 leaves the root's parameters whole.
        if chosen == "evaluated":
            evaluate(model)
        results[name] = train(model, optimizer, microbatches=1 if option != "accumulated" else 3, clip=chosen == "clipped")
        if chosen == "evaluated":
            evaluate(model)
    return results


def evaluate(model: PreTrainedModel) -> None:
    """Evaluates, and continues a sequence with a cache of keys and values."""
    model.eval()
    with torch.no_grad():
        whole = model(input_ids=batch_of(0)).logits.argmax(-1)
    start = batch_of(0)[:, :9]
    continued = model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=2, do_sample=False, use_cache=True)
    assert torch.equal(continued[:, 9], whole[:, 8])
    model.train()


def generate(option: str) -> list[int]:
    """Each rank continues a text of its own, as the unsharded model does. Returns the lengths of the ranks' texts."""
    plain = make_model("llama").eval()
    start = rows_of_rank(batch_of(0))[:1, : 5 + dist.get_rank()]

    def continued(model: PreTrainedModel, **options: Any) -> Tensor:
        return model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=6, do_sample=False, use_cache=True, **options)

    own = continued(plain, min_new_tokens=6)
    if option == "min_new_tokens":
        options = {"min_new_tokens": 6}
    else:  # The text of rank 0 ends with its first new token, those of the others do not end before the limit.
        options = {"eos_token_id": own[0, start.shape[1]].item() if dist.get_rank() == 0 else None}
    model = shard_blocks(make_model("llama"), weft.fully_shard).eval()
    ahead = {"synced_gpus": True} if option == "synced_gpus" else {}
    text = continued(model, **options, **ahead)
    assert torch.equal(text, continued(plain, **options)), (text, own)
    lengths = [0] * dist.get_world_size()
    dist.all_gather_object(lengths, text.shape[1] - start.shape[1])
    return lengths


def generate_of_an_encoder_decoder() -> None:
    """`generate` calls the encoder alone, and then the whole model: it is registered as a forward. Training goes on afterwards."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    torch.manual_seed(0)
    plain = T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes)).eval()
    model = copy.deepcopy(plain)
    for block in [*model.encoder.block, *model.decoder.block]:
        weft.fully_shard(block)
    weft.fully_shard(model)
    weft.register_fsdp_forward_method(model, "generate")
    tokens = batch_of(0)
    for _ in range(2):
        texts = [each.generate(tokens, max_new_tokens=5, min_new_tokens=5, do_sample=False) for each in (model, plain)]
        assert torch.equal(*texts), texts
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        assert torch.equal(loss.detach(), plain(input_ids=tokens, labels=tokens).loss.detach())
        assert all(param.grad is not None for param in model.parameters())
        model.zero_grad()


def gradient_of_an_input(kind: str) -> None:
    """torch.autograd.grad after the forward leaves the parameters without gradients."""
    plain = make_model(kind)
    model = shard_blocks(make_model(kind), weft.fully_shard)
    found = []
    for each in (model, plain):
        embedded = plain.model.embed_tokens(batch_of(0)).detach().requires_grad_()
        loss = each(inputs_embeds=embedded, labels=batch_of(0)).loss
        (gradient,) = torch.autograd.grad(loss, embedded)
        assert all(param.grad is None for param in each.parameters())
        found.append(gradient)
    assert torch.equal(*found)
    fresh = shard_blocks(make_model(kind), weft.fully_shard)
    assert train(model, make_optimizer(model)) == train(fresh, make_optimizer(fresh))


def distillation() -> dict[str, list[float]]:
    """Two models of different classes in one process: a frozen teacher, and its student."""
    results = {}
    for name, shard in SHARDS.items():
        teacher = shard_blocks(make_model("qwen3").requires_grad_(False), shard)
        student = shard_blocks(make_model("llama"), shard)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        results[name] = []
        for step in range(3):
            tokens = rows_of_rank(batch_of(step))
            target = teacher(input_ids=tokens).logits.softmax(-1)
            loss = F.cross_entropy(student(input_ids=tokens).logits.flatten(0, 1), target.flatten(0, 1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            results[name].append(loss.item())
    return results


def compiled(kind: str, backend: str, order: str) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Results of eager and of compiled blocks, and what Dynamo has counted for those of weft.

    order: blocks are compiled "before" or "after" they are sharded, or the "whole" model is compiled.
    """
    eager = shard_blocks(make_model(kind), weft.fully_shard)
    results, counts = {"eager": train(eager, make_optimizer(eager))}, {}
    for name, shard in SHARDS.items():
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = make_model(kind)
        if order == "before":
            compile_blocks(model, backend)
        shard_blocks(model, shard)
        if order == "after":
            compile_blocks(model, backend)
        if order == "whole":
            model.compile(backend=backend)
        results[name] = train(model, make_optimizer(model))
        counters = torch._dynamo.utils.counters
        counts[name] = {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}
    return results, counts


def compile_blocks(model: PreTrainedModel, backend: str) -> None:
    for layer in model.model.layers:
        layer.compile(backend=backend)


def workers_beside_shards() -> None:
    """Forked workers of a DataLoader while a sharded model trains: the losses are those without workers."""
    losses = []
    for workers in (0, 2):
        model = shard_blocks(make_model("llama"), weft.fully_shard)
        optimizer = weft.AdamW(model.parameters(), lr=1e-2)
        data = [batch_of(step)[dist.get_rank()] for step in range(4)]
        loader = torch.utils.data.DataLoader(data, batch_size=1, num_workers=workers, multiprocessing_context="fork" if workers else None)
        losses.append([])
        for _ in range(2):  # The workers of the second epoch are forked when the shards lie in node memory.
            for tokens in loader:
                loss = model(input_ids=tokens, labels=tokens).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses[-1].append(loss.item())
    assert losses[0] == losses[1]
