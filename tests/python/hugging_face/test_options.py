"""Options of training with models of transformers: weft.fully_shard against FSDP2, both over the backend "weft"."""

import importlib.util
import itertools

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("needs transformers", allow_module_level=True)

import option_bodies as bodies

KINDS = ["llama", "qwen3"]
# Each with whether it changes results: bits of a float, or only memory and the order of work.
OPTIONS = {"checkpointed": False, "checkpointed_reentrant": False, "accumulated": False, "evaluated": False, "clipped": True, "bf16": True}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", OPTIONS)
def test_equals_fsdp2_to_the_bit(pool_of, kind: str, option: str) -> None:
    results = pool_of(2).run(bodies.options, kind, option)[0]
    assert results["weft"] == results["fsdp2"]
    assert (results["weft"] != results["without"]) == OPTIONS[option]


@pytest.mark.parametrize(("option", "lengths"), [("synced_gpus", [1, 6]), ("min_new_tokens", [6, 6])])
def test_ranks_generate_texts_of_their_own(pool_of, option: str, lengths: list[int]) -> None:
    assert pool_of(2).run(bodies.generate, option) == [lengths] * 2


def test_an_encoder_decoder_generates_by_a_registered_method(pool_of) -> None:
    pool_of(2).run(bodies.generate_of_an_encoder_decoder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_of_an_input_leaves_parameters_alone(pool_of, kind: str) -> None:
    pool_of(2).run(bodies.gradient_of_an_input, kind)


def test_a_teacher_and_its_student_train_as_with_fsdp2(pool_of) -> None:
    results = pool_of(2).run(bodies.distillation)[0]
    assert results["weft"] == results["fsdp2"]


def test_forked_workers_change_nothing(pool_of) -> None:
    pool_of(2).run(bodies.workers_beside_shards)


COMPILATIONS = [
    pytest.param(kind, order, backend, marks=() if (kind, order, backend) == ("llama", "after", "aot_eager") else pytest.mark.slow)
    for kind, order, backend in itertools.product(KINDS, ["before", "after", "whole"], ["aot_eager", "inductor"])
]


@pytest.mark.parametrize(("kind", "order", "backend"), COMPILATIONS)
def test_compiled_models_train_as_eager_ones(pool_of, kind: str, order: str, backend: str) -> None:
    results, counts = pool_of(2).run(bodies.compiled, kind, backend, order)[0]
    assert results["weft"] == results["fsdp2"]
    assert results["weft"] == pytest.approx(results["eager"], rel=1e-5, abs=1e-5)
    # Blocks are one graph, which both layers share. The hooks of weft and of FSDP2 break the graph of a whole model.
    assert counts["weft"] == counts["fsdp2"]
    assert (counts["weft"] == {"graphs": 1, "breaks": 0}) == (order != "whole")
