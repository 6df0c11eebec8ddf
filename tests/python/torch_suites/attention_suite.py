"""Tests of PyTorch's test/distributed/tensor/test_attention.py, which is not in torch's package and needs GPUs: where their behavior
is tested for weft.context_parallel, or why it does not apply.
"""

_FOLDER = "tests/python/context_parallel"
_SCOPE = f"`{_FOLDER}/test_context_scope.py`"
_ATTENTION = f"`{_FOLDER}/test_context_attention.py`"
_LAYOUTS = f"`{_FOLDER}/test_context_layouts.py`"

# Class or test, behavior, and where it is tested.
TESTED = [
    ("RingAttentionTest.test_ring_attention_sdpa",
     "outputs and gradients equal those of one rank: causal or not, balanced or not, both rotations",
     f"{_ATTENTION}: on 1 to 4 ranks, with GQA, in f32, bf16 and f64"),
    ("RingAttentionTest.test_ring_attention_sdpa", "a forward without gradients; the traffic of forward and of backward",
     f"{_SCOPE}: `check_a_forward_alone`; {_ATTENTION}: bytes equal the formulas"),
    ("RingAttentionTest.test_ring_attention_sdpa", "the function through a reference, and compiled",
     f"{_SCOPE}: `check_attention_is_reached_by_every_name`, `check_compiled_blocks`"),
    ("RingAttentionTest.test_is_causal_behavior", "which blocks of a ring are causal, whole or skipped",
     f"{_LAYOUTS}: tiles and plans of rings"),
    ("TestSharding.test_context_parallel_shard", "a rank has a chunk from the front and one from the back, along several dims",
     f"{_SCOPE}: `check_buffers_are_split_and_restored`"),
    ("TestSharding.test_context_parallel_shard_with_positions", "buffers that are expanded over the batch",
     f"{_SCOPE}: `check_buffers_of_any_strides`"),
    ("TestContextParallelStyleSDPA", "arguments by position and by name", f"{_SCOPE}: `check_arguments_by_position_and_by_name`"),
    ("CPFlexAttentionTest.test_cp_flex_attention_document_mask, CPVarlenAttentionTest, TestCPVarlenMetadata",
     "causal attention within documents, the same or others in each row, balanced per document",
     f"{_ATTENTION}: option `documents`; {_LAYOUTS}: positions and parts of documents"),
    ("TestCPVarlenMetadata.test_cross_attention_unsupported", "cross-attention is an error", f"{_SCOPE}: `check_misuse_of_attention`"),
]

# Class or test, and why it does not apply.
NOT_APPLICABLE = [
    ("CPFlexAttentionTest.test_cp_flex_attention_causal_mask, TestContextParallelStyle",
     "flex_attention with a BlockMask, which weft.context_parallel refuses by an error "
     "(`test_flex_attention_is_refused`)"),
    ("CPFlexAttentionTest, TestCPVarlenMetadata.test_seq_len_divisibility",
     "errors for lengths that the ranks do not divide: weft splits any length"),
    ("TestVarlenPTRRLoadBalancer", "torch's balancer of blocks: weft splits each document in itself, from its front and its back"),
    ("TestCPCustomOps", "torch's own operator for gathering keys"),
    ("TestSharding.test_attention_shard_without_cp", "sharding rules of DTensor, which weft.context_parallel does not use"),
    ("CPVarlenAttentionTest", "the function varlen_attn and its sharded metadata: the option `documents` takes their place"),
    ("RingAttentionTest.test_ring_attention_sdpa", "the choice among kernels for GPUs: the CPU has one flash kernel"),
]


def section() -> str:
    lines = ["", "## Attention", "",
             "PyTorch's test/distributed/tensor/test_attention.py needs GPUs and is not in its package. Its behavior is tested anew:",
             "", "| PyTorch's test | behavior | test of weft |", "|---|---|---|"]
    lines += [f"| {name} | {behavior} | {place} |" for name, behavior, place in TESTED]
    lines += ["", "Not applicable:", "", "| PyTorch's test | reason |", "|---|---|"]
    lines += [f"| {name} | {reason} |" for name, reason in NOT_APPLICABLE]
    return "\n".join(lines) + "\n"
