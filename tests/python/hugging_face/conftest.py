"""Tests with models of transformers. Its import takes seconds: the server of the ranks does it."""

import sys
from pathlib import Path

import rank_pool

sys.path.insert(0, str(Path(__file__).resolve().parent))
rank_pool.PRELOADED += ["model_bodies", "option_bodies", "trainer_bodies", "example_bodies"]
