#!/usr/bin/env python3
"""Tests of check_paths.py on small trees."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_paths
from small_tree import SmallTree


class CheckPaths(SmallTree):
    rule = check_paths

    def setUp(self):
        super().setUp()
        for file in ("include/weft/comm/work.h", "bench/engine/wire.cc", "bench/peers/llama.py", "tools/test.sh"):
            self.write(file, "")

    def test_accepts_paths_that_exist(self):
        self.write("docs/engine.md", "## Goals\n\nThe [tests](../tools/test.sh) and [goals](engine.md#goals) of `bench/engine/`, "
                                     "`weft/comm/work.h`, `comm/work.h`, `include/weft/<layer>/` and `bench/engine/*.cc`:\n\n"
                                     "    tools/test.sh\n")
        self.write("bench/README.md", "The model is that of `peers/llama.py`.\n")
        self.assertEqual(self.violations(), [])

    def test_accepts_what_is_no_path_of_the_tree(self):
        self.write("docs/engine.md", "`shard/all_gather`, `build/release/bin/weft`, `DIR/config.json`, [PyTorch](https://pytorch.org/a.md)\n")
        self.assertEqual(self.violations(), [])

    def test_reads_no_page_that_git_ignores(self):
        self.write(".gitignore", "/build-*/\n/venv/\n*.pyc\n")
        for folder in ("build-tsan", "venv/lib"):
            self.write(f"{folder}/README.md", "[gone](gone.md) `bench/gone.cc`\n")
        self.assertEqual(self.violations(), [])

    def test_finds_a_folder_and_a_file_that_do_not_exist(self):
        self.write("docs/engine.md", "See `bench/wire` and `weft/comm/works.h`.\n\n    tools/tests.sh\n")
        self.assertEqual(self.violations(), [f"docs/engine.md: names {path}, which does not exist"
                                             for path in ("bench/wire", "tools/tests.sh", "weft/comm/works.h")])

    def test_finds_a_link_to_a_file_that_does_not_exist(self):
        self.write("README.md", "[engine](docs/engines.md#lanes)\n")
        self.assertEqual(self.violations(), ["README.md: links to docs/engines.md, which does not exist"])

    def test_finds_a_link_to_a_part_that_does_not_exist(self):
        self.write("docs/engine.md", "# The engine\n\n```sh\n# Lanes\n```\n## Goals, at `1gbit`: [all](a)\n## Goals\n### Goals\n")
        self.write("README.md", "[a](docs/engine.md#the-engine), [b](docs/engine.md#goals-at-1gbit-all), [c](docs/engine.md#goals-1), "
                                "[d](docs/engine.md#lanes), [e](docs/engine.md#goals-2), [f](#start), [g](tools/test.sh#l1)\n")
        self.write("docs/a", "")
        self.assertEqual(self.violations(), [f"README.md: links to {link}, but that page has no such part"
                                             for link in ("#start", "docs/engine.md#goals-2", "docs/engine.md#lanes")])

    def test_finds_a_pattern_without_files(self):
        self.write("README.md", "`include/weft/<layer>/types.h` and `bench/*.cc`\n")
        self.assertEqual(self.violations(), [f"README.md: names {path}, which does not exist"
                                             for path in ("bench/*.cc", "include/weft/<layer>/types.h")])


if __name__ == "__main__":
    unittest.main()
