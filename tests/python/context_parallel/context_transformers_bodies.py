"""Models of transformers whose masks or rotary frequencies depend on the length of the sequence. Runs on ranks of a
RankPool."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from context_scope_bodies import PLAIN_ATTENTION, close, make_mesh, raises, random_qkv, split
from torch import nn
from weft.torch.context_parallel import context_parallel, context_parallel_unshard

VOCABULARY, TOKENS = 61, 24


@dataclass(frozen=True)
class Case:
    """kind: "mistral", "llama" or "llama4". configuration: of the model, in addition to its sizes. options: of the scope."""

    kind: str
    configuration: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    documents: tuple[int, ...] = (0, TOKENS)

    @property
    def tokens(self) -> int:
        return self.documents[-1]


def _make_model(case: Case) -> nn.Module:
    import transformers

    options = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "use_cache": False,
        "attn_implementation": "sdpa",
        "bos_token_id": 0,
        "eos_token_id": 1,
    } | case.configuration
    torch.manual_seed(0)
    if case.kind == "mistral":
        return transformers.MistralForCausalLM(transformers.MistralConfig(**options))
    if case.kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))
    configuration = transformers.Llama4TextConfig(**options, moe_layers=[], intermediate_size_mlp=64)
    return transformers.Llama4ForCausalLM(configuration)


def _batch(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(VOCABULARY, (2, case.tokens + 1), generator=torch.Generator().manual_seed(5))
    return ids[:, :-1].clone(), ids[:, 1:].clone()


def _position_ids(case: Case) -> torch.Tensor:
    """[tokens]."""
    offsets = case.documents
    return torch.cat([torch.arange(end - begin) for begin, end in zip(offsets, offsets[1:], strict=False)])


def _loss_of(case: Case, model: nn.Module, ids, targets, positions, mask: torch.Tensor | None = None) -> torch.Tensor:
    return model(
        input_ids=ids,
        position_ids=positions.expand(ids.shape),
        attention_mask=torch.ones_like(ids) if mask is None else mask,
        labels=targets,
        shift_labels=targets,
        num_items_in_batch=2 * case.tokens,
    ).loss


def _loss_and_gradient_of_one_rank(case: Case) -> list[torch.Tensor]:
    """Each document alone."""
    model, (ids, targets) = _make_model(case), _batch(case)
    lengths = [end - begin for begin, end in zip(case.documents, case.documents[1:], strict=False)]
    parts = zip(*(tensor.split(lengths, dim=-1) for tensor in (ids, targets, _position_ids(case))), strict=True)
    loss = sum(_loss_of(case, model, *(part.contiguous() for part in document)) for document in parts)
    loss.backward()
    return [loss.detach(), model.model.embed_tokens.weight.grad]


def _loss_and_gradient_of_all_ranks(case: Case, mask: torch.Tensor | None = None) -> list[torch.Tensor]:
    model, (ids, targets), positions = _make_model(case), _batch(case), _position_ids(case)
    documents = case.documents if len(case.documents) > 2 else None
    with context_parallel(
        make_mesh(),
        buffers=[ids, targets, positions],
        buffer_seq_dims=[1, 1, 0],
        documents=documents,
        **case.options,
    ):
        loss = _loss_of(case, model, ids, targets, positions, mask)
        loss.backward()
    results = [loss.detach(), model.model.embed_tokens.weight.grad]
    for result in results:
        dist.all_reduce(result)
    return results


def check_equals_one_rank(case: Case, window: int | None = None) -> None:
    """`window`: of a mask over all tokens that the model is given."""
    mask = None
    if window is not None:
        distances = torch.arange(case.tokens).unsqueeze(1) - torch.arange(case.tokens)
        mask = ((distances >= 0) & (distances < window)).expand(1, 1, -1, -1)
    results = _loss_and_gradient_of_all_ranks(case, mask)
    for actual, expected in zip(results, _loss_and_gradient_of_one_rank(case), strict=True):
        close(actual, expected)


def check_is_refused(case: Case, message: str) -> None:
    """The entries of transformers are restored after an error, too."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    entries = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"], ALL_ATTENTION_FUNCTIONS["sdpa"]
    try:
        _loss_and_gradient_of_all_ranks(case)
    except ValueError as error:
        assert re.search(message, str(error)), f"the message is: {error}"
        assert entries == (ALL_MASK_ATTENTION_FUNCTIONS["sdpa"], ALL_ATTENTION_FUNCTIONS["sdpa"])
        return
    raise AssertionError(f"no ValueError with {message!r}")


def check_one_token_for_each_rank() -> None:
    """The function that models look up refuses causal attention there. It takes attention that is not meant to be causal,
    and attention with a mask."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    mesh = make_mesh()
    whole = random_qkv(tokens=mesh.size())
    mask = torch.ones(mesh.size(), mesh.size(), dtype=torch.bool).tril().expand(1, 1, -1, -1)
    plain, causal_plain = PLAIN_ATTENTION(*whole), PLAIN_ATTENTION(*whole, is_causal=True)
    causal, encoder = nn.Module(), nn.Module()
    encoder.is_causal = False
    parts, scope = split(mesh, whole)
    with scope:

        def attend(module: nn.Module, mask: torch.Tensor | None, **options: bool) -> torch.Tensor:
            out, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](module, *parts, mask, **options)
            (out,) = context_parallel_unshard(mesh, [out], [1])
            return out.transpose(1, 2)

        raises(ValueError, r"leaves one token on ranks \[0, 1.*drops is_causal.*at least 2 tokens", attend, causal, None)
        raises(ValueError, "leaves one token", attend, encoder, None, is_causal=True)
        close(attend(encoder, None), plain)
        close(attend(causal, None, is_causal=False), plain)
        close(attend(causal, mask), causal_plain)


def check_eager_attention_of_other_tokens() -> None:
    """A model of its own tokens, such as an encoder of images, is right in a scope."""
    model = _make_model(Case("llama", {"attn_implementation": "eager"}))
    ids, others = _batch(Case("llama", {}))
    others = others[:, :5]
    with torch.no_grad():
        expected = model(input_ids=others).logits
        with context_parallel(make_mesh(), buffers=[ids], buffer_seq_dims=[1]):
            close(model(input_ids=others).logits, expected)
