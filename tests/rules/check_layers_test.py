#!/usr/bin/env python3
"""Tests of check_layers.py on small trees: the violations that it must find, and the code that it must accept."""
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_layers
from small_tree import SmallTree


class TreeCase(SmallTree):
    """A test on a small tree of its own."""

    rule = check_layers

    def assert_one_violation(self, *words):
        found = self.violations()
        self.assertEqual(len(found), 1, found)
        for word in words:
            self.assertIn(word, found[0])


class CheckLayers(TreeCase):
    def test_lets_downward_includes_and_links_pass(self):
        self.write("include/weft/comm/engine.h", '#include "weft/core/status.h"\n#include "weft/comm/work.h"\n')
        self.write("src/comm/engine/engine.cc", '#include "src/comm/engine/impl.h"\n#include "helper.h"\n#include <mpi.h>\n')
        self.write("src/comm/CMakeLists.txt", "weft_layer(comm PUBLIC weft::memory PRIVATE weft_options)\n")
        self.write("sharding/group/group.cc", '#include "weft/nn/module.h"\n#include "sharding/group/impl.h"\n')
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

    def test_finds_neighbors_that_include_each_other(self):
        self.assertIn("across", check_layers.fault_of_dependency("sharding", "context_parallel"))
        self.assertIn("across", check_layers.fault_of_dependency("context_parallel", "sharding"))

    def test_finds_an_include_upward_in_a_layer_outside_src(self):
        self.write("sharding/group/group.cc", '#include "weft/optim/adamw.h"\n')
        self.assert_one_violation("sharding/group/group.cc", "sharding may not use optim")

    def test_finds_another_layers_private_header(self):
        self.write("src/comm/engine/engine.cc", '#include "src/mesh/mpi/mpi_link.h"\n')
        self.assert_one_violation("private to mesh")

    def test_finds_a_private_header_in_a_public_one(self):
        self.write("include/weft/comm/engine.h", '#include "src/comm/impl.h"\n')
        self.assert_one_violation("public headers only")

    def test_finds_relative_paths(self):
        self.write("src/core/base/status.cc", '#include "../comm/impl.h"\n')
        self.assert_one_violation("..")

    def test_finds_hidden_libraries_in_public_headers_only(self):
        for library in ["mpi.h", "omp.h", "hwloc.h", "Eigen/Core", "oneapi/dnnl/dnnl.hpp", "dnnl.h"]:
            with self.subTest(library=library):
                self.write("include/weft/nn/matmul.h", f"#include <{library}>\n")
                self.write("src/nn/products/matmul.cc", f"#include <{library}>\n")
                self.assert_one_violation("include/weft/nn/matmul.h", "expose")

    def test_finds_a_link_upward(self):
        self.write("src/mesh/CMakeLists.txt", "weft_layer(mesh PUBLIC weft::core weft::comm)\n")
        self.assert_one_violation("src/mesh/CMakeLists.txt", "mesh may not use comm")

    def test_finds_a_link_upward_to_one_of_several_libraries(self):
        self.write("src/comm/CMakeLists.txt", "weft_layer(comm PUBLIC weft::core weft::products)\n")
        self.assert_one_violation("src/comm/CMakeLists.txt", "comm may not use nn")

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
        self.write("src/core/base/status.cc", '#include "weft/utils/strings.h"\n')
        self.assert_one_violation("'utils' is no layer")

    def test_fails_on_a_tree_without_layers(self):
        self.assertEqual(check_layers.main(self.root), 2)


class CheckRooms(TreeCase):
    def test_lets_includes_of_lower_rooms_pass(self):
        self.write("src/comm/base/types.h", "")
        self.write("src/comm/links/link.h", '#include "src/comm/base/types.h"\n')
        self.write("src/comm/links/link.cc", '#include "src/comm/links/link.h"\n#include "src/comm/base/types.h"\n')
        self.assertEqual(self.violations(), [])

    def test_finds_an_include_of_a_higher_room(self):
        self.write("sharding/group/group.h", "")
        self.write("sharding/plan/plan.cc", '#include "sharding/group/group.h"\n')
        self.assert_one_violation("sharding/plan/plan.cc", "room plan of sharding may not use room group", "above")

    def test_finds_rooms_beside_each_other_that_include_each_other(self):
        self.write("src/mesh/tcp/wire.h", "")
        self.write("src/mesh/threads/fabric.cc", '#include "src/mesh/tcp/wire.h"\n')
        self.assert_one_violation("room threads of mesh may not use room tcp", "across")

    def test_counts_a_public_header_to_the_room_of_its_source(self):
        self.write("src/comm/engine/work.cc", "")
        self.write("include/weft/comm/work.h", "")
        self.write("src/comm/codec/codec.cc", '#include "weft/comm/work.h"\n')
        self.assert_one_violation("src/comm/codec/codec.cc", "room codec of comm may not use room engine")

    def test_finds_a_public_header_that_includes_one_of_a_higher_room(self):
        self.write("src/nn/kernels/mask.cc", "")
        self.write("src/nn/modules/runs.cc", "")
        self.write("include/weft/nn/runs.h", "")
        self.write("include/weft/nn/mask.h", '#include "weft/nn/runs.h"\n')
        self.assert_one_violation("include/weft/nn/mask.h", "room kernels of nn may not use room modules")

    def test_counts_a_public_header_without_a_source_to_the_lowest_room_that_its_includes_allow(self):
        self.write("src/nn/modules/runs.cc", "")
        self.write("include/weft/nn/runs.h", "")
        self.write("include/weft/nn/interface.h", '#include "weft/nn/runs.h"\n')
        self.write("src/nn/modules/attention.cc", '#include "weft/nn/interface.h"\n')
        self.assertEqual(self.violations(), [])
        self.write("src/nn/kernels/mask.cc", '#include "weft/nn/interface.h"\n')
        self.assert_one_violation("src/nn/kernels/mask.cc", "room kernels of nn may not use room modules")

    def test_accepts_headers_without_a_source_that_include_each_other(self):
        self.write("include/weft/nn/a.h", '#include "weft/nn/b.h"\n')
        self.write("include/weft/nn/b.h", '#include "weft/nn/a.h"\n')
        self.assertEqual(self.violations(), [])

    def test_finds_a_source_outside_of_the_rooms(self):
        self.write("src/comm/engine.cc", "")
        self.assert_one_violation("src/comm/engine.cc", "no room of comm")


class CheckFolderSizes(TreeCase):
    def write_files(self, folder, count):
        for i in range(count):
            self.write(f"{folder}/file{i}.cc", "")

    def test_finds_a_folder_that_is_too_large(self):
        for folder in ("src/core/base", "python/bindings"):
            with self.subTest(folder=folder):
                self.write_files(folder, check_layers.MAX_FILES_OF_A_FOLDER + 1)
                self.assert_one_violation(folder, "holds 27 headers and sources, of at most 26")
                shutil.rmtree(self.root / folder)

    def test_counts_each_folder_alone(self):
        self.write_files("tests/nn", check_layers.MAX_FILES_OF_A_FOLDER)
        self.write_files("tests/nn/kernels", check_layers.MAX_FILES_OF_A_FOLDER)
        self.assertEqual(self.violations(), [])


if __name__ == "__main__":
    unittest.main()
