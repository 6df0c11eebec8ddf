// Fixture of one rank: heap, and a link in shared memory with one open lane.
#pragma once

#include <memory>

#include <absl/functional/function_ref.h>

#include "src/comm/links/shared_memory_link.h"
#include "tests/comm/support/engine_fixture.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {

inline constexpr int kFlagsLane = 5;
inline constexpr int kCounters = 3;

struct LinkFixture {
  std::unique_ptr<NodeHeap> heap;
  std::unique_ptr<NodeLink> link;

  static absl::StatusOr<LinkFixture> Make(Bootstrap& bootstrap) {
    LinkFixture fixture;
    WEFT_ASSIGN_OR_RETURN(fixture.heap, NodeHeap::Create(bootstrap, {.segment_bytes = 1 << 22}));
    WEFT_ASSIGN_OR_RETURN(fixture.link, MakeSharedMemoryLink(bootstrap, *fixture.heap, kTestTimeout));
    WEFT_RETURN_IF_ERROR(fixture.link->OpenLane(kFlagsLane, kCounters));
    return fixture;
  }
};

// Runs `body` on ranks 0 and 1, which share a node. Rank 2, on another node, has no local peers.
inline void RunOnANode(absl::FunctionRef<absl::Status(Bootstrap&, NodeLink&, int peer)> body) {
  RunRanks(NodeMap{{0, 0, 1}}, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(LinkFixture fixture, LinkFixture::Make(bootstrap));
    if (bootstrap.rank() == 2) {
      for (int i = 0; i < 4; ++i) WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      return absl::OkStatus();
    }
    return body(bootstrap, *fixture.link, 1 - bootstrap.rank());
  });
}

}  // namespace weft::testing
