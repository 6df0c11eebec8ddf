#!/usr/bin/env python3
"""check_layers.py on made-up trees: what it must find, and what it must let pass."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_layers


class CheckLayers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def violations(self):
        return list(check_layers.violations(self.root))

    def assert_one_violation(self, *words):
        found = self.violations()
        self.assertEqual(len(found), 1, found)
        for word in words:
            self.assertIn(word, found[0])

    def test_lets_downward_includes_and_links_pass(self):
        self.write("include/weft/comm/engine.h", '#include "weft/core/status.h"\n#include "weft/comm/work.h"\n')
        self.write("src/comm/engine.cc", '#include "src/comm/impl.h"\n#include "helper.h"\n#include <mpi.h>\n')
        self.write("src/comm/CMakeLists.txt", "weft_layer(comm PUBLIC weft::memory PRIVATE weft_options)\n")
        self.write("sharding/group.cc", '#include "weft/nn/module.h"\n#include "sharding/impl.h"\n')
        self.assertEqual(self.violations(), [])

    def test_finds_an_include_upward_in_a_public_header(self):
        self.write("include/weft/core/status.h", '#include "weft/mesh/bootstrap.h"\n')
        self.assert_one_violation("include/weft/core/status.h", "core may not use mesh", "above")

    def test_finds_an_include_upward_in_a_source(self):
        self.write("src/memory/heap.cc", '#  include "weft/comm/work.h"\n')
        self.assert_one_violation("src/memory/heap.cc", "memory may not use comm")

    def test_finds_an_include_in_angle_brackets(self):
        self.write("src/memory/heap.cc", "#include <weft/comm/work.h>\n")
        self.assert_one_violation("memory may not use comm")

    def test_finds_neighbours_that_include_each_other(self):
        for layer, other in [("sharding", "context_parallel"), ("optim", "checkpoint")]:
            with self.subTest(layer=layer):
                self.assertIn("across", check_layers.fault_of_dependency(layer, other))
                self.assertIn("across", check_layers.fault_of_dependency(other, layer))

    def test_finds_an_include_upward_in_a_layer_outside_src(self):
        self.write("sharding/group.cc", '#include "weft/optim/adamw.h"\n')
        self.assert_one_violation("sharding/group.cc", "sharding may not use optim")

    def test_finds_another_layers_private_header(self):
        self.write("src/comm/engine.cc", '#include "src/mesh/mpi_link.h"\n')
        self.assert_one_violation("mesh's own")

    def test_finds_a_private_header_in_a_public_one(self):
        self.write("include/weft/comm/engine.h", '#include "src/comm/impl.h"\n')
        self.assert_one_violation("public headers only")

    def test_finds_relative_paths(self):
        self.write("src/core/status.cc", '#include "../comm/impl.h"\n')
        self.assert_one_violation("..")

    def test_finds_hidden_libraries_in_public_headers_only(self):
        for library in ["mpi.h", "omp.h", "Eigen/Core", "oneapi/dnnl/dnnl.hpp", "dnnl.h"]:
            with self.subTest(library=library):
                self.write("include/weft/nn/matmul.h", f"#include <{library}>\n")
                self.write("src/nn/matmul.cc", f"#include <{library}>\n")
                self.assert_one_violation("include/weft/nn/matmul.h", "expose")

    def test_finds_a_link_upward(self):
        self.write("src/mesh/CMakeLists.txt", "weft_layer(mesh PUBLIC weft::core weft::comm)\n")
        self.assert_one_violation("src/mesh/CMakeLists.txt", "mesh may not use comm")

    def test_finds_a_link_by_the_targets_own_name(self):
        self.write("src/mesh/CMakeLists.txt", "target_link_libraries(weft_mesh PRIVATE weft_memory)\n")
        self.assert_one_violation("mesh may not use memory")

    def test_finds_a_link_to_the_umbrella(self):
        self.write("src/cli/CMakeLists.txt", "target_link_libraries(weft_cli PRIVATE weft::weft)\n")
        self.assert_one_violation("weft::weft")

    def test_reads_no_link_in_a_comment(self):
        self.write("src/mesh/CMakeLists.txt", "# weft::comm links us\nweft_layer(mesh PUBLIC weft::core)\n")
        self.assertEqual(self.violations(), [])

    def test_finds_folders_that_are_no_layer(self):
        self.write("src/utils/strings.cc", "")
        self.assert_one_violation("src/utils", "no layer")

    def test_finds_includes_of_what_is_no_layer(self):
        self.write("src/core/status.cc", '#include "weft/utils/strings.h"\n')
        self.assert_one_violation("'utils' is no layer")

    def test_does_not_call_an_empty_tree_good(self):
        self.assertEqual(check_layers.main(self.root), 2)


if __name__ == "__main__":
    unittest.main()
