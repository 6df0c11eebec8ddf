"""Tests of models that are trained. An optimizer imports torch._dynamo in its first step: the server of the ranks does it."""

import rank_pool

rank_pool.PRELOADED.append("torch._dynamo")
