#!/usr/bin/env python3
"""Tests of check_headers.py on small trees."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_headers
from small_tree import SmallTree

HEADER = "// A thing.\n#pragma once\n"


class CheckHeaders(SmallTree):
    rule = check_headers

    def test_accepts_a_header_that_its_source_includes_first(self):
        self.write("include/weft/comm/work.h", HEADER)
        self.write("src/comm/engine/work.cc", '#include "weft/comm/work.h"\n\n#include <vector>\n')
        self.assertEqual(self.violations(), [])

    def test_finds_a_source_that_includes_another_header_first(self):
        self.write("include/weft/sharding/policy.h", HEADER)
        self.write("sharding/plan/policy.cc", '#include <vector>\n\n#include "weft/sharding/policy.h"\n')
        self.assertEqual(self.violations(), ["sharding/plan/policy.cc: its first include must be weft/sharding/policy.h"])

    def test_reads_no_source_of_another_layer(self):
        self.write("include/weft/nn/types.h", HEADER)
        self.write("src/comm/base/types.cc", "#include <vector>\n")
        self.assertEqual(self.violations(), [])

    def test_finds_a_header_that_may_not_be_included_twice(self):
        headers = ["src/core/loops.h", "python/bindings/session.h"]
        for header in headers:
            self.write(header, "// A thing without #pragma once.\n")
        self.assertEqual(self.violations(), [f"{header}: has no '#pragma once'" for header in headers])

    def test_finds_a_name_whose_header_is_not_included(self):
        self.write("include/weft/nn/mlp.h", HEADER + "#include <vector>\n// A std::map.\nstd::vector<std::int64_t> Sizes(char quote = '\"');\n")
        self.assertEqual(self.violations(), ["include/weft/nn/mlp.h: uses int64_t, but does not include <cstdint>"])

    def test_finds_a_name_without_a_known_header(self):
        self.write("include/weft/nn/mlp.h", HEADER + "std::regex Pattern();\n")
        self.assertEqual(self.violations(), ["include/weft/nn/mlp.h: uses std::regex; add it to PROVIDERS in check_headers.py"])


if __name__ == "__main__":
    unittest.main()
