// Sweeps of the collectives whose parts are lists of ranges, over random ranges. Results are compared bit by
// bit, copied bytes with a formula. The same bodies run over threads and over MPI.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/comm/support/engine_fixture.h"
#include "weft/comm/part_ranges.h"

namespace weft::testing {

// Ranges of each rank, the same for the same arguments: some empty, some of one element, some of several
// slices of `slice_elements`, in any order, with gaps between some. Some ranks have none.
std::vector<std::vector<ElementRange>> DrawRanges(uint64_t seed, int ranks, int64_t slice_elements);

// Gathers, from parts end to end and in place, into private outputs, into one block for each node, and with
// delta encoding. Expects unchanged elements outside of the parts.
absl::Status SweepGathersOfRanges(EngineFixture& fixture, WireCompression wire_compression);
// Expects sums in the order of the canonical tree.
absl::Status SweepReduceScatterOfRanges(EngineFixture& fixture, WireCompression wire_compression);

}  // namespace weft::testing
