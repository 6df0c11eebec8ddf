"""Layouts, documents, tiles, heads and hops, against plain loops over tokens."""

from __future__ import annotations

import random

import pytest
from weft.torch.context_parallel.layouts.byte_formulas import AttentionShape, costs_of, outer_ranges
from weft.torch.context_parallel.layouts.choose_scheme import choose_among
from weft.torch.context_parallel.layouts.context_scheme import ContextScheme, SchemeRequest
from weft.torch.context_parallel.layouts.documents import (
    cut_at_documents,
    document_lengths,
    parse_documents,
    position_end,
    positions_in_documents,
)
from weft.torch.context_parallel.layouts.head_split import HeadSplit
from weft.torch.context_parallel.layouts.ring_plan import RingPlan
from weft.torch.context_parallel.layouts.sequence_layout import SequenceLayout, TokenRange
from weft.torch.context_parallel.layouts.tile_plan import has_tiles, plan_tiles

BALANCES = ("none", "head-tail")


def tokens_of(ranges) -> list[int]:
    return [token for part in ranges for token in range(part.begin, part.end)]


def random_lengths(generator: random.Random) -> tuple[int, ...]:
    return tuple(generator.randint(1, 13) for _ in range(generator.randint(1, 5)))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("balance", BALANCES)
def test_a_layout_gives_every_token_to_one_rank(ranks, balance):
    for seed in range(20):
        layout = SequenceLayout(random_lengths(random.Random(seed)), ranks, balance)
        tokens = [token for ranges in layout.ranges for token in tokens_of(ranges)]
        assert sorted(tokens) == list(range(layout.tokens))
        assert layout.counts == tuple(len(tokens_of(ranges)) for ranges in layout.ranges)


def test_head_tail_gives_a_rank_a_chunk_from_the_front_and_one_from_the_back():
    layout = SequenceLayout((8,), 2, "head-tail")
    assert [tokens_of(ranges) for ranges in layout.ranges] == [[0, 1, 6, 7], [2, 3, 4, 5]]


def test_a_remainder_goes_to_the_first_parts():
    assert SequenceLayout((10,), 4, "none").counts == (3, 3, 2, 2)


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_chunks_of_adjacent_ranks_form_the_head_tail_chunks_of_the_outer_level(degree):
    fine, coarse = SequenceLayout((48,), 4, "head-tail"), SequenceLayout((48,), 4 // degree, "head-tail")
    assert outer_ranges(fine, degree) == coarse.ranges


@pytest.mark.parametrize(
    "lengths, ranks, balance", [((), 2, "none"), ((3, 0), 2, "none"), ((3,), 0, "none"), ((3,), 2, "x")]
)
def test_a_layout_refuses_impossible_arguments(lengths, ranks, balance):
    with pytest.raises(ValueError):
        SequenceLayout(lengths, ranks, balance)


def test_documents_are_read_from_ids_and_from_offsets():
    assert parse_documents([5, 5, 5, 2, 2, 5], 6) == (0, 3, 5, 6)
    assert parse_documents([0, 3, 5, 6], 6) == (0, 3, 5, 6)
    assert parse_documents([0, 6], 6) == (0, 6)
    assert document_lengths((0, 3, 5, 6)) == (3, 2, 1)


@pytest.mark.parametrize("values", [[0, 3, 7], [0, 3, 3, 6], [1, 1, 1], [0, 2, 3, 4, 5, 6]])
def test_documents_that_fit_no_reading_or_both_are_refused(values):
    with pytest.raises(ValueError):
        parse_documents(values, 6)


def test_positions_restart_at_documents():
    ranges = (TokenRange(1, 4), TokenRange(6, 8))
    assert cut_at_documents(ranges, (0, 3, 7, 8)) == ((1, 3), (3, 4), (6, 7), (7, 8))
    assert positions_in_documents(ranges, (0, 3, 7, 8)) == [1, 2, 0, 3, 0]
    assert position_end(ranges, (0, 3, 7, 8)) == 4
    assert position_end(ranges, (0, 8)) == 8
    assert position_end((), (0, 8)) == 0


def pairs_of(tiles, queries, keys) -> list[tuple[int, int]]:
    pairs = []
    for tile in tiles:
        rows, columns = queries[tile.queries], keys[tile.keys]
        assert columns == list(range(tile.key_tokens.start, tile.key_tokens.stop))
        if tile.is_causal:
            assert len(rows) == len(columns)
        tile_pairs = [(q, k) for i, q in enumerate(rows) for j, k in enumerate(columns) if not tile.is_causal or j <= i]
        assert len(tile_pairs) == tile.pairs
        pairs.extend(tile_pairs)
    return pairs


@pytest.mark.parametrize("is_causal", [True, False])
def test_tiles_hold_every_visible_pair_once(is_causal):
    for seed in range(300):
        generator = random.Random(seed)
        ranks = generator.randint(1, 4)
        lengths = random_lengths(generator)
        layout = SequenceLayout(lengths, ranks, generator.choice(BALANCES))
        offsets = layout.document_offsets if seed % 2 else (0, layout.tokens)
        ids = [sum(token >= offset for offset in offsets) for token in range(layout.tokens)]
        queries, keys = (
            generator.choice(layout.ranges),
            generator.choice([*layout.ranges, ((TokenRange(0, layout.tokens)),)]),
        )
        tiles = plan_tiles(queries, keys, offsets, is_causal)
        visible = [
            (q, k)
            for q in tokens_of(queries)
            for k in tokens_of(keys)
            if ids[q] == ids[k] and (k <= q or not is_causal)
        ]
        assert sorted(pairs_of(tiles, tokens_of(queries), tokens_of(keys))) == sorted(visible)
        assert has_tiles(queries, keys, offsets, is_causal) == bool(visible)


def test_a_causal_mask_over_a_contiguous_part_has_two_tiles():
    tiles = plan_tiles([TokenRange(8, 16)], [TokenRange(0, 32)], (0, 32), True)
    assert [(tile.queries, tile.keys, tile.is_causal) for tile in tiles] == [
        (slice(0, 8), slice(0, 8), False),
        (slice(0, 8), slice(8, 16), True),
    ]


@pytest.mark.parametrize("heads, kv_heads, ranks", [(8, 2, 4), (6, 3, 4), (5, 5, 2), (3, 1, 4), (2, 2, 7), (12, 4, 5)])
def test_a_rank_has_the_kv_heads_that_its_query_heads_read(heads, kv_heads, ranks):
    split = HeadSplit(heads, kv_heads, ranks)
    assert [head for part in split.queries for head in range(*part)] == list(range(heads))
    for rank in range(ranks):
        queries, keys = split.queries[rank], split.keys[rank]
        needed = [head // split.group for head in range(*queries)]
        assert sorted(set(needed)) == list(range(*keys))
        local = split.key_of_each_query(rank)
        if local is not None:
            assert [keys.begin + head for head in local] == needed
        elif queries.count:
            size = queries.count // keys.count
            assert [keys.begin + index // size for index in range(queries.count)] == needed
    held = [head for part in split.keys for head in range(*part)]
    assert split.replicates == (len(held) > len(set(held)))


def simulate_ring(plan: RingPlan, attends) -> None:
    """Moves blocks and gradients as the ranks do, and checks that every rank gets what it needs and the owner all
    gradients."""
    for owner in range(plan.ranks):
        contributions: set[int] = set()
        returned = False
        for distance in range(plan.ranks):
            rank = (owner + distance) % plan.ranks
            if distance and attends(rank, owner):
                assert all(plan.reaches(owner, d) for d in range(1, distance + 1))
            arrives = distance == 0 or plan.passes_gradients_on(owner, distance - 1)
            contributions = contributions if arrives and distance else set()
            if distance and attends(rank, owner):
                contributions.add(rank)
            if plan.returns_gradients(owner, distance):
                assert contributions == {peer for peer in range(plan.ranks) if peer != owner and attends(peer, owner)}
                returned = True
        assert returned == any(attends(peer, owner) for peer in range(plan.ranks) if peer != owner)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_a_ring_moves_blocks_and_gradients_exactly_where_they_are_needed(ranks):
    for seed in range(50):
        generator = random.Random(seed)
        visible = {(r, o): generator.random() < 0.6 for r in range(ranks) for o in range(ranks)}
        simulate_ring(RingPlan(ranks, lambda r, o: visible[r, o]), lambda r, o: visible[r, o])


def test_a_causal_ring_sends_no_block_from_the_last_rank_to_the_first():
    plan = RingPlan(4, lambda rank, owner: rank >= owner)
    assert [plan.reaches(3, distance) for distance in range(1, 4)] == [False, False, False]
    assert [plan.reaches(0, distance) for distance in range(1, 4)] == [True, True, True]


def test_bytes_equal_the_formulas_of_the_documentation():
    ranks, tokens, heads, kv_heads, dim, size = 4, 64, 8, 4, 16, 4
    shape = AttentionShape(1, heads, kv_heads, dim, dim, size)
    layout = SequenceLayout((tokens,), ranks, "head-tail")
    c, e = tokens // ranks, dim * size

    def cost(scheme):
        return costs_of(scheme, shape, layout, 1, is_causal=True)

    ulysses = (ranks - 1) * c * e * (2 * heads + 2 * kv_heads) // ranks
    gathered = (ranks - 1) * c * e * 2 * kv_heads
    hybrid = c * e * (2 * heads + 2 * kv_heads) // 2 + 2 * c * e * 2 * kv_heads // 2
    for scheme, forward, backward in [
        (ContextScheme(4), ulysses, ulysses),
        (ContextScheme(1), gathered, gathered),
        (ContextScheme(1, "shift", "head-tail"), gathered, 2 * gathered),
        (ContextScheme(1, "all-gather", "head-tail"), gathered, 2 * gathered),
        (ContextScheme(2), hybrid, hybrid),
    ]:
        assert (cost(scheme).forward_bytes, cost(scheme).backward_bytes) == (forward, backward)


def test_a_distance_at_which_no_gradients_move_is_one_hop_of_backward():
    # Ranks 0 and 1 have a token each. The block of rank 1 reaches rank 0 after four hops; nothing else goes so far.
    ring, layout = ContextScheme(1, "shift"), SequenceLayout((2,), 5, "none")
    for rank in range(5):
        costs = costs_of(ring, AttentionShape(), layout, rank, is_causal=False)
        assert (costs.forward_hops, costs.backward_hops) == (4, 4 + 2)


@pytest.mark.parametrize("is_causal", [True, False])
def test_computed_pairs_are_those_of_the_tiles(is_causal):
    for seed in range(50):
        generator = random.Random(seed)
        layout = SequenceLayout(random_lengths(generator), 4, generator.choice(BALANCES))
        for degree in (1, 2, 4):
            outer = outer_ranges(layout, degree)
            for rank in range(4):
                costs = costs_of(ContextScheme(degree), AttentionShape(heads=4), layout, rank, is_causal=is_causal)
                tiles = [plan_tiles(outer[rank // degree], keys, layout.document_offsets, is_causal) for keys in outer]
                pairs = sum(tile.pairs for owner in tiles for tile in owner)
                assert costs.pairs == pairs * 4 // degree


def test_auto_takes_the_fewest_bytes_among_balanced_schemes():
    layout = SequenceLayout((4096,), 4, "head-tail")
    candidates = SchemeRequest(4).candidates()

    def choose(heads, kv_heads):
        shape = AttentionShape(1, heads, kv_heads, 64, 64, 4)
        return choose_among(candidates, shape, layout, is_causal=True).scheme.kind(4)

    assert choose(16, 16) == "ulysses"
    assert choose(16, 1) == "gather"
    # Three heads leave one of four ranks without work.
    assert choose(3, 3) != "ulysses"


def test_auto_skips_an_unbalanced_layout_of_a_causal_mask():
    layout = SequenceLayout((4096,), 4, "none")
    shape = AttentionShape(1, 16, 1, 64, 64, 4)
    choice = choose_among(SchemeRequest(4, load_balance="none").candidates(), shape, layout, is_causal=True)
    assert choice.scheme.kind(4) == "ulysses"
    assert "of the mean work" in choice.reason


@pytest.mark.parametrize(
    "arguments, remedy",
    [
        ({"scheme": "rings"}, "use one of"),
        ({"ulysses_degree": 3}, "use one of 1, 2, 4"),
        ({"scheme": "ulysses", "ulysses_degree": 2}, "choose another scheme"),
        ({"scheme": "gather", "ulysses_degree": 2}, "choose another scheme"),
        ({"scheme": "hybrid", "ulysses_degree": 4}, "choose another scheme"),
        ({"scheme": "gather", "ring_rotate": "shift"}, "leave it out"),
        ({"scheme": "ring", "ring_rotate": "left"}, "use one of"),
        ({"load_balance": "zigzag"}, "use one of"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_a_remedy(arguments, remedy):
    with pytest.raises(ValueError, match=remedy):
        SchemeRequest(4, **arguments)


def test_a_hybrid_needs_a_degree_between_one_and_the_ranks():
    with pytest.raises(ValueError, match="use scheme 'ulysses', 'gather' or 'ring'"):
        SchemeRequest(3, "hybrid")


@pytest.mark.parametrize(
    "request_, kinds",
    [
        (SchemeRequest(4), ["ulysses", "hybrid", "gather"]),
        (SchemeRequest(4, load_balance="head-tail"), ["hybrid", "gather"]),
        (SchemeRequest(4, "hybrid"), ["hybrid"]),
        (SchemeRequest(4, "ring"), ["ring"]),
        (SchemeRequest(4, ulysses_degree=4), ["ulysses"]),
        (SchemeRequest(1), ["gather"]),
    ],
)
def test_a_request_lists_its_schemes(request_, kinds):
    assert [scheme.kind(request_.ranks) for scheme in request_.candidates()] == kinds
