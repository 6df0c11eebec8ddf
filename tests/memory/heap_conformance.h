// Conformance tests of NodeHeap for every kind of bootstrap. All ranks run each function.
#pragma once

#include <absl/status/status.h>

#include "weft/mesh/bootstrap.h"

namespace weft::testing {

// All ranks allocate at random and concurrently. Blocks are aligned, keep their contents, and are visible to
// all ranks of the node.
absl::Status BlocksDoNotOverlapAndAreVisibleToTheNode(Bootstrap& bootstrap);
// A full heap returns an error with the numbers of bytes, and works again after blocks are freed.
absl::Status AFullHeapReturnsAnError(Bootstrap& bootstrap);
// Without a requested size, all ranks choose the same size, and can allocate.
absl::Status RanksChooseTheSameDefaultSize(Bootstrap& bootstrap);
// All ranks use the smallest requested size. A size that no node has is an error on every rank.
absl::Status RanksUseTheSmallestRequestedSize(Bootstrap& bootstrap);

}  // namespace weft::testing
