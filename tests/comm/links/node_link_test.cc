// Visibility of published state between the ranks of a node.
#include "src/comm/links/node_link.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <gtest/gtest.h>

#include "src/comm/links/node_flags.h"
#include "src/comm/links/shared_memory_link.h"
#include "tests/comm/support/link_fixture.h"
#include "tests/support/forwarding_bootstrap.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Descriptor DescriptorOf(uint64_t sequence, int rank) {
  Descriptor descriptor;
  descriptor.sequence = sequence;
  descriptor.total_count = 100 * rank + static_cast<int64_t>(sequence);
  return descriptor;
}

TEST(NodeLink, ShowsADescriptorOnceItIsPublished) {
  RunOnANode([](Bootstrap& bootstrap, NodeLink& link, int peer) -> absl::Status {
    EXPECT_FALSE(link.Peek(kFlagsLane, peer, 1));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    link.Publish(kFlagsLane, DescriptorOf(1, bootstrap.rank()));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    const auto theirs = link.Peek(kFlagsLane, peer, 1);
    EXPECT_TRUE(theirs && IsSameCollective(*theirs, DescriptorOf(1, peer)));
    EXPECT_FALSE(link.Peek(kFlagsLane, peer, 2));
    EXPECT_FALSE(link.Peek(kFlagsLane + 1, peer, 1));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    return BootstrapBarrier(bootstrap);
  });
}

TEST(NodeLink, ReusesASlotAfterOneRing) {
  RunOnANode([](Bootstrap& bootstrap, NodeLink& link, int peer) -> absl::Status {
    constexpr uint64_t kLast = 3 * NodeLink::kSlots + 2;
    for (uint64_t sequence = 1; sequence <= kLast; ++sequence) {
      link.Publish(kFlagsLane, DescriptorOf(sequence, bootstrap.rank()));
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    for (uint64_t sequence = 1; sequence <= kLast; ++sequence) {
      const auto theirs = link.Peek(kFlagsLane, peer, sequence);
      EXPECT_EQ(theirs.has_value(), sequence > kLast - NodeLink::kSlots) << sequence;
      EXPECT_TRUE(!theirs || IsSameCollective(*theirs, DescriptorOf(sequence, peer)));
    }
    for (int i = 0; i < 3; ++i) WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    return absl::OkStatus();
  });
}

TEST(NodeLink, GivesEachOperationCountersThatStartAtZero) {
  RunOnANode([](Bootstrap& bootstrap, NodeLink& link, int peer) -> absl::Status {
    link.Publish(kFlagsLane, DescriptorOf(1, bootstrap.rank()));
    link.Publish(kFlagsLane, DescriptorOf(2, bootstrap.rank()));
    link.SetCounter(kFlagsLane, 1, 2, 10 + bootstrap.rank());
    link.SetCounter(kFlagsLane, 2, 0, 20 + bootstrap.rank());
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_EQ(link.Counter(kFlagsLane, peer, 1, 2), 10 + peer);
    EXPECT_EQ(link.Counter(kFlagsLane, peer, 1, 0), 0);
    EXPECT_EQ(link.Counter(kFlagsLane, peer, 2, 0), 20 + peer);
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    link.Publish(kFlagsLane, DescriptorOf(1 + NodeLink::kSlots, bootstrap.rank()));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_EQ(link.Counter(kFlagsLane, peer, 1 + NodeLink::kSlots, 2), 0);
    EXPECT_EQ(link.Counter(kFlagsLane, peer, 2, 0), 20 + peer);
    return BootstrapBarrier(bootstrap);
  });
}

// Both ranks concurrently claim pieces of both ranks' parts in two operations.
TEST(NodeLink, GivesEachPieceOfAnOperationToOneClaimer) {
  constexpr int64_t kPieces = 500;
  RunOnANode([](Bootstrap& bootstrap, NodeLink& link, int peer) -> absl::Status {
    link.Publish(kFlagsLane, DescriptorOf(1, bootstrap.rank()));
    link.Publish(kFlagsLane, DescriptorOf(2, bootstrap.rank()));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    std::string claimed;
    for (const int owner : {peer, bootstrap.rank()}) {
      for (const uint64_t sequence : {1, 2}) {
        while (const auto piece = link.ClaimPiece(kFlagsLane, owner, sequence, kPieces)) {
          absl::StrAppend(&claimed, owner, "/", sequence, "/", *piece, " ");
        }
        EXPECT_TRUE(link.AllPiecesClaimed(kFlagsLane, owner, sequence, kPieces));
      }
    }
    WEFT_ASSIGN_OR_RETURN(const auto all, bootstrap.AllGatherBlob(claimed, kTestTimeout));
    const std::string together = absl::StrCat(all[0], all[1]);
    const std::vector<std::string> claims = absl::StrSplit(together, ' ', absl::SkipEmpty());
    EXPECT_EQ(claims.size(), 4 * kPieces);
    EXPECT_EQ(std::set<std::string>(claims.begin(), claims.end()).size(), 4 * kPieces);
    link.FinishPiece(kFlagsLane, peer, 1);
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_EQ(link.FinishedPieces(kFlagsLane, bootstrap.rank(), 1), 1);
    EXPECT_EQ(link.FinishedPieces(kFlagsLane, bootstrap.rank(), 2), 0);
    link.Publish(kFlagsLane, DescriptorOf(1 + NodeLink::kSlots, bootstrap.rank()));
    EXPECT_EQ(link.FinishedPieces(kFlagsLane, bootstrap.rank(), 1 + NodeLink::kSlots), 0);
    EXPECT_EQ(link.ClaimPiece(kFlagsLane, bootstrap.rank(), 1 + NodeLink::kSlots, kPieces), 0);
    return BootstrapBarrier(bootstrap);
  });
}

constexpr NodeLink::LocalGroup kMeeting{kFlagsLane, /*host=*/0, /*ranks=*/2};

TEST(NodeLink, AddsUpWhatAllRanksAddToAWord) {
  RunOnANode([](Bootstrap& bootstrap, NodeLink& link, int /*peer*/) -> absl::Status {
    constexpr int64_t kAdditions = 1000;
    if (bootstrap.rank() == 0) link.SetWord(kMeeting, 1, 42);
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    int64_t sum = 0;
    for (int64_t i = 0; i < kAdditions; ++i) {
      const int64_t before = std::exchange(sum, link.AddToWord(kMeeting, 1, 1));
      EXPECT_GT(sum, before);
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_EQ(link.Word(kMeeting, 1), 42 + 2 * kAdditions);
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    return BootstrapBarrier(bootstrap);
  });
}

TEST(NodeLink, TellsWhetherAllHaveArrivedWithEqualHashes) {
  RunOnANode([](Bootstrap& bootstrap, NodeLink& link, int /*peer*/) -> absl::Status {
    const int rank = bootstrap.rank();
    const auto hash = [&](uint64_t sequence) { return sequence == 1 ? 7 : 8 + static_cast<uint64_t>(rank); };
    if (rank == 0) {
      EXPECT_EQ(link.Arrive(kMeeting, 1, hash(1)), NodeLink::Arrived::kSome);
      EXPECT_EQ(link.HaveArrived(kMeeting, 1, hash(1)), NodeLink::Arrived::kSome);
      EXPECT_EQ(link.Arrive(kMeeting, 2, hash(2)), NodeLink::Arrived::kSome);
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (rank == 1) {
      EXPECT_EQ(link.Arrive(kMeeting, 1, hash(1)), NodeLink::Arrived::kAllEqual);
      EXPECT_EQ(link.Arrive(kMeeting, 2, hash(2)), NodeLink::Arrived::kUnequal);
      link.SetWord(kMeeting, 1, 42);
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_EQ(link.HaveArrived(kMeeting, 1, hash(1)), NodeLink::Arrived::kAllEqual);
    EXPECT_EQ(link.HaveArrived(kMeeting, 2, hash(2)), NodeLink::Arrived::kUnequal);
    EXPECT_EQ(link.Word(kMeeting, 1), 42);
    EXPECT_EQ(link.Word(kMeeting, 2), 0);
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    return BootstrapBarrier(bootstrap);
  });
}

// Both ranks pass through several operations of each slot concurrently.
TEST(NodeLink, ClearsTheCountersOfAnOperationThatAllHaveConsumed) {
  RunOnANode([](Bootstrap& bootstrap, NodeLink& link, int /*peer*/) -> absl::Status {
    constexpr uint64_t kLast = 20 * NodeLink::kSlots;
    int64_t arrived_last = 0;
    int64_t consumed_last = 0;
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));  // Rank 0 has opened the lane.
    for (uint64_t sequence = 1; sequence <= kLast; ++sequence) {
      while (sequence > link.ConsumedByAll(kMeeting) + NodeLink::kSlots) std::this_thread::yield();
      if (*link.Arrive(kMeeting, sequence, sequence) == NodeLink::Arrived::kAllEqual) ++arrived_last;
      while (link.HaveArrived(kMeeting, sequence, sequence) == NodeLink::Arrived::kSome)
        std::this_thread::yield();
      EXPECT_EQ(link.HaveArrived(kMeeting, sequence, sequence), NodeLink::Arrived::kAllEqual) << sequence;
      if (link.Consume(kMeeting, sequence)) ++consumed_last;
    }
    const auto last = bootstrap.AllGatherBlob(absl::StrCat(arrived_last, " ", consumed_last), kTestTimeout);
    WEFT_RETURN_IF_ERROR(last.status());
    int64_t arrived_sum = 0;
    int64_t consumed_sum = 0;
    for (const int rank : {0, 1}) {
      const std::vector<std::string> counts = absl::StrSplit((*last)[static_cast<size_t>(rank)], ' ');
      arrived_sum += std::stoll(counts[0]);
      consumed_sum += std::stoll(counts[1]);
    }
    EXPECT_EQ(arrived_sum, kLast);
    EXPECT_EQ(consumed_sum, kLast);
    EXPECT_EQ(link.ConsumedByAll(kMeeting), kLast);
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    link.Reset();
    EXPECT_TRUE(bootstrap.rank() == 1 || link.ConsumedByAll(kMeeting) == 0);
    return BootstrapBarrier(bootstrap);
  });
}

TEST(NodeLink, CannotArriveBeforeTheHostHasOpenedTheLane) {
  RunOnANode([](Bootstrap& bootstrap, NodeLink& link, int /*peer*/) -> absl::Status {
    constexpr NodeLink::LocalGroup kOther{kFlagsLane + 1, /*host=*/0, /*ranks=*/2};
    if (bootstrap.rank() == 1) {
      EXPECT_EQ(link.Arrive(kOther, 1, 5), std::nullopt);
      EXPECT_EQ(link.ConsumedByAll(kOther), 0U);
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (bootstrap.rank() == 0) WEFT_RETURN_IF_ERROR(link.OpenLane(kFlagsLane + 1, kCounters));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (bootstrap.rank() == 1) {
      EXPECT_EQ(link.Arrive(kOther, 1, 5), NodeLink::Arrived::kSome);
    }
    for (int i = 0; i < 2; ++i) WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    return absl::OkStatus();
  });
}

TEST(NodeLink, MapsMemoryOfPeers) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(LinkFixture fixture, LinkFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(std::byte * block, fixture.heap->Allocate(64));
    const auto address = fixture.link->AddressOf(block);
    EXPECT_TRUE(address && address->rank == bootstrap.rank());
    EXPECT_EQ(fixture.link->Map(*address), block);
    int outside = 0;
    EXPECT_FALSE(fixture.link->AddressOf(&outside));
    *block = static_cast<std::byte>(40 + bootstrap.rank());
    WEFT_ASSIGN_OR_RETURN(const auto offsets,
                          bootstrap.AllGatherBlob(absl::StrCat(address->offset), kTestTimeout));
    const int peer = 1 - bootstrap.rank();
    std::byte* theirs = fixture.link->Map({peer, std::stoull(offsets[static_cast<size_t>(peer)])});
    EXPECT_EQ(*theirs, static_cast<std::byte>(40 + peer));
    EXPECT_EQ(fixture.link->AddressOf(theirs)->rank, peer);
    return BootstrapBarrier(bootstrap);
  });
}

// A peer that fails because its memory is overwritten may leave a text without an end.
TEST(NodeLink, ReadsNoMoreThanTheTextOfAFailureNotice) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const LinkFixture fixture, LinkFixture::Make(bootstrap));
    const std::string text = "the text of this notice";
    if (bootstrap.rank() == 1) {
      fixture.link->PublishFailure({1, absl::AbortedError(text)});
      char* const segment = reinterpret_cast<char*>(fixture.heap->Resolve({1, 0}));
      const std::string_view memory(segment, fixture.heap->segment_bytes());
      std::fill_n(segment + memory.find(text), sizeof(shared_memory::FailureSlot), 'x');
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (bootstrap.rank() == 0) {
      const auto failure = fixture.link->ReadFailure();
      EXPECT_TRUE(failure.has_value());
      const std::string all(shared_memory::FailureSlot::kTextBytes, 'x');
      EXPECT_EQ(failure ? failure->cause.message() : "", all);
    }
    return BootstrapBarrier(bootstrap);
  });
}

// Changes the place of rank 1's flags that it tells the others.
class MisplacedFlags final : public ForwardingBootstrap {
 public:
  using ForwardingBootstrap::ForwardingBootstrap;
  absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                         absl::Duration timeout) override {
    std::string sent(blob);
    if (rank() == 1 && sent.find("flags of an engine") != std::string::npos) {
      const uint64_t offset = (1 << 22) - 64;
      std::memcpy(sent.data() + sent.size() - sizeof(offset), &offset, sizeof(offset));
    }
    return ForwardingBootstrap::AllGatherBlob(sent, timeout);
  }
};

TEST(NodeLink, RefusesFlagsOutsideOfNodeMemory) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    MisplacedFlags misplaced(bootstrap);
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(misplaced, {.segment_bytes = 1 << 22}));
    const auto link = MakeSharedMemoryLink(misplaced, *heap, kTestTimeout);
    if (bootstrap.rank() == 0) {
      EXPECT_THAT(link, StatusIs(absl::StatusCode::kInternal,
                                 AllOf(HasSubstr("rank 1"), HasSubstr("not in node memory"),
                                       HasSubstr("same version of weft"))));
    }
    return BootstrapBarrier(bootstrap);
  });
}

TEST(NodeLink, ResetClearsFlagsAndFailureNotices) {
  RunOnANode([](Bootstrap& bootstrap, NodeLink& link, int peer) -> absl::Status {
    EXPECT_FALSE(link.ReadFailure());
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    link.Publish(kFlagsLane, DescriptorOf(1, bootstrap.rank()));
    link.Release(kFlagsLane, 1);
    link.PublishFailure({bootstrap.rank() + 10, absl::DataLossError("first")});
    link.PublishFailure({bootstrap.rank(), absl::AbortedError("second")});
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_EQ(link.Consumed(kFlagsLane, peer), 1U);
    const auto failure = link.ReadFailure();
    EXPECT_TRUE(failure && failure->rank == peer + 10);
    EXPECT_THAT(failure ? failure->cause : absl::OkStatus(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("first")));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    link.Reset();
    WEFT_RETURN_IF_ERROR(link.OpenLane(kFlagsLane, kCounters));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_FALSE(link.Peek(kFlagsLane, peer, 1));
    EXPECT_EQ(link.Consumed(kFlagsLane, peer), 0U);
    EXPECT_FALSE(link.ReadFailure());
    return absl::OkStatus();
  });
}

// The timeout is an hour, so Wait returns only because of the doorbell.
TEST(NodeLink, DoorbellThatRangSinceItWasReadEndsTheWait) {
  constexpr int64_t kHourNs = int64_t{3600} * 1'000'000'000;
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(LinkFixture fixture, LinkFixture::Make(bootstrap));
    NodeLink& link = *fixture.link;
    const uint32_t seen = link.Doorbell();
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (bootstrap.rank() == 0) {
      link.Ring(1);
      link.Wait(seen, kHourNs);
    } else {
      link.Wait(seen, kHourNs);
      link.Ring(0);
    }
    return BootstrapBarrier(bootstrap);
  });
}

}  // namespace
}  // namespace weft::testing
