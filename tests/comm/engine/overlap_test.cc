// No two messages in flight share memory that one of them writes: MPI forbids it.
#include <algorithm>
#include <map>
#include <mutex>

#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/bootstrap_of_links.h"
#include "tests/support/forwarding_link.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

// Fails the test if a message is posted whose memory overlaps that of another in flight.
class OverlapChecker final : public ForwardingLink {
 public:
  using ForwardingLink::ForwardingLink;

  absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) override {
    Check({static_cast<const std::byte*>(data), bytes, /*writes=*/false});
    return Track(ForwardingLink::Send(peer, tag, data, bytes),
                 {static_cast<const std::byte*>(data), bytes, false});
  }
  absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes, Length length) override {
    Check({static_cast<const std::byte*>(data), bytes, /*writes=*/true});
    return Track(ForwardingLink::Receive(peer, tag, data, bytes, length),
                 {static_cast<const std::byte*>(data), bytes, true});
  }
  absl::StatusOr<bool> Test(RequestId request) override {
    const absl::StatusOr<bool> done = ForwardingLink::Test(request);
    if (!done.ok() || *done) in_flight_.erase(request);
    return done;
  }
  bool Cancel(RequestId request) override {
    const bool canceled = ForwardingLink::Cancel(request);
    if (canceled) in_flight_.erase(request);
    return canceled;
  }

 private:
  struct Memory {
    const std::byte* begin;
    size_t bytes;
    bool writes;
  };
  void Check(const Memory& memory) const {
    for (const auto& [request, other] : in_flight_) {
      const bool overlaps =
          memory.begin < other.begin + other.bytes && other.begin < memory.begin + memory.bytes;
      EXPECT_FALSE(overlaps && (memory.writes || other.writes))
          << (memory.writes ? "a receive" : "a send") << " is posted over "
          << (other.writes ? "a receive" : "a send");
    }
  }
  absl::StatusOr<RequestId> Track(absl::StatusOr<RequestId> request, const Memory& memory) {
    if (request.ok()) in_flight_.emplace(*request, memory);
    return request;
  }

  std::map<RequestId, Memory> in_flight_;
};

TEST(MessagesInFlight, OfAnAllReduceInPlaceDoNotOverlap) {
  constexpr int64_t kCount = 5000;
  for (const NodeMap& nodes :
       {NodeMap::RanksPerNode(4, 1), NodeMap{{0, 0, 0, 1, 1, 2}}, NodeMap{{0, 1, 0, 1}}}) {
    RunRanks(nodes, [](Bootstrap& bootstrap) -> absl::Status {
      BootstrapOfLinks<OverlapChecker> checked(bootstrap);
      EngineOptions options;
      options.slice_bytes = 256;
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(checked, options));
      for (const WireCompression compression : {WireCompression::kNone, WireCompression::kLossless}) {
        WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, DType::kF32, kCount));
        for (int64_t i = 0; i < kCount; ++i) buffer.Write(i, {static_cast<double>(i + bootstrap.rank())});
        OpOptions op;
        op.wire_compression = compression;
        Work work = fixture.engine->AllReduce(fixture.lane, buffer.data(), buffer.data(), DType::kF32, kCount,
                                              ReduceOp::kSum, op);
        WEFT_RETURN_IF_ERROR(work.WaitReleased());
        const int n = bootstrap.size();
        for (const int64_t i : {int64_t{0}, int64_t{1}, kCount / 2, kCount - 1}) {
          EXPECT_EQ(buffer.Read(i, 1)[0], static_cast<double>(n * i) + static_cast<double>(n * (n - 1)) / 2);
        }
      }
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace weft::testing
