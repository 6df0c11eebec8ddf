"""Five steps of training over ranks that share sequences follow the losses of one rank."""

from __future__ import annotations

import importlib.util

import pytest
from context_training_bodies import (
    Training,
    check_a_mask_of_the_ranks_tokens_is_refused,
    losses_of_all_ranks,
    losses_of_one_rank,
)

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
MODELS = [
    "own",
    pytest.param("transformers", marks=pytest.mark.skipif(not HAS_TRANSFORMERS, reason="needs transformers")),
]
SCHEMES = [
    {},
    {"scheme": "ulysses"},
    {"scheme": "gather"},
    {"scheme": "ring"},
    {"scheme": "ring", "ring_rotate": "all-gather", "load_balance": "none"},
]


def check(pool, training: Training) -> None:
    expected = pool.run(losses_of_one_rank, training)[0]
    assert expected[-1] < expected[0]
    for losses, scheme in pool.run(losses_of_all_ranks, training):
        assert losses == pytest.approx(expected, abs=1e-5), scheme


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("options", SCHEMES, ids=str)
@pytest.mark.parametrize("ranks", [2, 4])
def test_context_parallel_training(ranks_of, ranks, options, model):
    check(ranks_of(ranks), Training(model, options=options))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("wrapper", ["sum", "ddp", "fsdp2", "weft"])
@pytest.mark.parametrize("scheme", ["auto", "ring"])
def test_training_over_rows_and_sequences(ranks_of, scheme, wrapper, model):
    check(ranks_of(4), Training(model, wrapper, dp=2, options={"scheme": scheme}))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("wrapper", ["sum", "fsdp2", "weft"])
def test_training_with_activation_checkpoints(ranks_of, wrapper, model):
    check(ranks_of(4), Training(model, wrapper, dp=2, uses_checkpoints=True, options={"scheme": "gather"}))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks, options", [(2, {}), (4, {"scheme": "hybrid"}), (3, {"scheme": "ring"})])
def test_training_with_documents_and_an_uneven_length(ranks_of, ranks, options, model):
    check(ranks_of(ranks), Training(model, tokens=25, documents=(0, 9, 10, 25), options=options))


@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="needs transformers")
def test_a_model_that_masks_its_own_tokens_alone_is_refused(ranks_of):
    ranks_of(4).run(check_a_mask_of_the_ranks_tokens_is_refused)
