#include "tests/mesh/support/bootstrap_conformance.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <sys/resource.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/abandoning_bootstrap.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string BlobOf(int rank, size_t round) {
  constexpr size_t kLengths[] = {0, 1, 17, 5000, 70000};
  return std::string(kLengths[(round + static_cast<size_t>(rank)) % std::size(kLengths)],
                     static_cast<char>('a' + rank + static_cast<int>(round)));
}

std::byte Mark(int rank, int reservation) { return static_cast<std::byte>(16 * (reservation + 1) + rank); }

absl::Status Barrier(Bootstrap& bootstrap) {
  return AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout);
}

absl::Status CheckReservation(Bootstrap& bootstrap, int reservation, size_t segment_bytes) {
  WEFT_ASSIGN_OR_RETURN(const NodeMemory memory, bootstrap.ReserveNodeMemory(segment_bytes));
  EXPECT_EQ(memory.segment_bytes, segment_bytes);
  std::vector<int> ranks;
  for (const NodeMemory::Segment& segment : memory.segments) {
    ranks.push_back(segment.rank);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(segment.base) % 64, 0);
    if (segment.rank != bootstrap.rank()) continue;
    EXPECT_TRUE(std::all_of(segment.base, segment.base + segment_bytes,
                            [](std::byte b) { return b == std::byte{0}; }));
    std::memset(segment.base, static_cast<int>(Mark(segment.rank, reservation)), segment_bytes);
  }
  EXPECT_EQ(ranks, bootstrap.node_map().RanksOf(bootstrap.node()));
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  for (const NodeMemory::Segment& segment : memory.segments) {
    EXPECT_TRUE(std::all_of(segment.base, segment.base + segment_bytes,
                            [&](std::byte b) { return b == Mark(segment.rank, reservation); }));
  }
  return Barrier(bootstrap);
}

}  // namespace

absl::Status GathersBlobsInRankOrder(Bootstrap& bootstrap) {
  for (size_t round = 0; round < 10; ++round) {
    WEFT_ASSIGN_OR_RETURN(const auto blobs,
                          bootstrap.AllGatherBlob(BlobOf(bootstrap.rank(), round), kTestTimeout));
    EXPECT_EQ(static_cast<int>(blobs.size()), bootstrap.size());
    for (int rank = 0; rank < bootstrap.size(); ++rank)
      EXPECT_TRUE(blobs[rank] == BlobOf(rank, round)) << round;
  }
  return absl::OkStatus();
}

absl::Status AllRanksGetTheErrorOfTheLowestFailingRank(Bootstrap& bootstrap) {
  EXPECT_OK(Barrier(bootstrap));
  for (int lowest = 0; lowest < bootstrap.size(); ++lowest) {
    const std::string own = absl::StrCat("no file ", bootstrap.rank(), "\nin the folder");
    const absl::Status local = bootstrap.rank() >= lowest ? absl::NotFoundError(own) : absl::OkStatus();
    const absl::Status agreed = AgreeOnStatus(bootstrap, local, kTestTimeout);
    const std::string message = absl::StrCat("no file ", lowest, "\nin the folder");
    EXPECT_THAT(agreed, StatusIs(absl::StatusCode::kNotFound,
                                 lowest == bootstrap.rank() ? message
                                                            : absl::StrCat("rank ", lowest, ": ", message)));
  }
  EXPECT_OK(Barrier(bootstrap));
  return absl::OkStatus();
}

// One rank after the other fails: rank r before exchange number r modulo kExchanges.
absl::Status AFailingRankEndsTheExchangesOfItsPeers(Bootstrap& bootstrap) {
  constexpr int kExchanges = 4;
  for (int failing = 0; failing < bootstrap.size(); ++failing) {
    const auto phase = [&]() -> absl::Status {
      for (int number = 0; number < kExchanges; ++number) {
        if (bootstrap.rank() == failing && number == failing % kExchanges) {
          return absl::DataLossError(absl::StrCat("no file ", failing));
        }
        const std::string own = absl::StrCat(bootstrap.rank(), " of ", number);
        WEFT_ASSIGN_OR_RETURN(const auto all,
                              ExchangeBlobs(bootstrap, absl::StrCat("exchange ", number), own, kTestTimeout));
        for (int rank = 0; rank < bootstrap.size(); ++rank)
          EXPECT_EQ(all[static_cast<size_t>(rank)], absl::StrCat(rank, " of ", number));
      }
      return absl::OkStatus();
    };
    const absl::Status agreed = AgreeOnStatus(bootstrap, phase(), kTestTimeout);
    const std::string by = failing == bootstrap.rank() ? "" : absl::StrCat("rank ", failing, ": ");
    EXPECT_THAT(agreed, StatusIs(absl::StatusCode::kDataLoss, absl::StrCat(by, "no file ", failing)));
    EXPECT_TRUE(IsAgreedError(agreed));
    EXPECT_EQ(AgreeOnStatus(bootstrap, agreed, kTestTimeout), agreed);  // Takes no round.
    EXPECT_OK(Barrier(bootstrap));
  }
  return absl::OkStatus();
}

absl::Status AllRanksLearnThatTheyAreInDifferentExchanges(Bootstrap& bootstrap) {
  if (bootstrap.size() == 1) return absl::OkStatus();
  const std::string what = bootstrap.rank() + 1 == bootstrap.size() ? "sizes" : "places";
  EXPECT_THAT(ExchangeBlobs(bootstrap, what, std::string("1"), kTestTimeout),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("rank 0 is in 'places'"), HasSubstr("in 'sizes'"))));
  EXPECT_OK(Barrier(bootstrap));
  return absl::OkStatus();
}

absl::Status SharesMemoryWithinTheNode(Bootstrap& bootstrap) {
  WEFT_RETURN_IF_ERROR(CheckReservation(bootstrap, 0, 10'000));
  return CheckReservation(bootstrap, 1, 64);
}

absl::Status RejectsReservationsAboveTheFreeMemory(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const FreeMemory free_memory, bootstrap.FreeNodeMemory());
  const size_t free_bytes = free_memory.least();
  EXPECT_GT(free_bytes, 0);
  // The sums of the largest sizes over the ranks of a node wrap around.
  for (const size_t bytes : {2 * free_bytes, SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 2 + 1}) {
    EXPECT_THAT(bootstrap.ReserveNodeMemory(bytes),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("cannot reserve"), HasSubstr("free"))));
    WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  }
  WEFT_RETURN_IF_ERROR(CheckReservation(bootstrap, 0, 0));
  return CheckReservation(bootstrap, 0, 4096);
}

absl::Status ReservesAtMostTheFilesThatItMayMake(Bootstrap& bootstrap, size_t files) {
  constexpr rlim_t kLargest = 1 << 20;
  rlimit before{};
  EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{std::min(kLargest, before.rlim_max), before.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const absl::StatusOr<FreeMemory> free_memory = bootstrap.FreeNodeMemory();
  const absl::StatusOr<NodeMemory> reserved = bootstrap.ReserveNodeMemory(2 * kLargest);
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(reserved, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("raise `ulimit -f`")));
  WEFT_RETURN_IF_ERROR(free_memory.status());
  EXPECT_EQ(free_memory->file_sizes, files * kLargest);
  return CheckReservation(bootstrap, 0, 2 * kLargest);
}

absl::Status SharesMemoryAfterARankHasMissedADeadline(Bootstrap& base) {
  AbandoningBootstrap bootstrap(base);
  constexpr size_t kSegmentBytes = 10'000;
  const bool misses = bootstrap.rank() == 0;
  if (misses) bootstrap.AbandonAfter(0);
  EXPECT_EQ(bootstrap.AllGatherBlob("", kTestTimeout).ok(), !misses);
  if (!misses) WEFT_RETURN_IF_ERROR(bootstrap.ReserveNodeMemory(kSegmentBytes).status());
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  WEFT_RETURN_IF_ERROR(CheckReservation(bootstrap, 0, kSegmentBytes));
  return CheckReservation(bootstrap, 1, 64);
}

std::vector<ConformanceTest> BootstrapConformance() {
  return {
      {"GathersBlobsInRankOrder", GathersBlobsInRankOrder},
      {"AllRanksGetTheErrorOfTheLowestFailingRank", AllRanksGetTheErrorOfTheLowestFailingRank},
      {"AFailingRankEndsTheExchangesOfItsPeers", AFailingRankEndsTheExchangesOfItsPeers},
      {"AllRanksLearnThatTheyAreInDifferentExchanges", AllRanksLearnThatTheyAreInDifferentExchanges},
      {"SharesMemoryWithinTheNode", SharesMemoryWithinTheNode},
      {"RejectsReservationsAboveTheFreeMemory", RejectsReservationsAboveTheFreeMemory},
  };
}

}  // namespace weft::testing
