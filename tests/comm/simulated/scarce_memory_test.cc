// Collectives between many nodes that find little free memory for the rings of their streams.
#include <numeric>
#include <vector>

#include <absl/functional/function_ref.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

constexpr int kScarceRanks = 20;       // Each on a node of its own.
constexpr int64_t kScarcePart = 1000;  // Elements.
constexpr int64_t kSliceBytes = 512;   // A part has eight slices.
// Less than four slices for each of 19 streams take, and more than two for each of them.
constexpr size_t kFreeBytes = size_t{32} << 10;

EngineOptions DirectExchanges() {
  EngineOptions options;
  options.slice_bytes = kSliceBytes;
  options.relaying = Relaying::kNever;
  return options;
}

// Takes the memory of the pool but for `left` bytes.
absl::StatusOr<std::vector<Buffer>> TakeAllBut(BufferPool& pool, size_t left) {
  constexpr size_t kBlock = 1024;
  std::vector<Buffer> taken;
  while (pool.free_bytes() > left + kBlock) {
    WEFT_ASSIGN_OR_RETURN(taken.emplace_back(), pool.Acquire(kBlock));
  }
  return taken;
}

// Parts of all ranks, in memory outside of the node heap.
struct Parts {
  std::vector<float> whole = std::vector<float>(kScarceRanks * kScarcePart);
  std::byte* data() { return reinterpret_cast<std::byte*>(whole.data()); }
};

// Element i of what rank `from` has for rank `to`.
float Value(int from, int to, int64_t i) {
  return static_cast<float>(from + kScarceRanks * to) + static_cast<float>(kScarceRanks * kScarceRanks * i);
}

void RunWithLittleMemory(absl::FunctionRef<absl::Status(EngineFixture&, int rank)> body) {
  const SimReport report = RunSimulatedRanks(
      NodeMap::RanksPerNode(kScarceRanks, 1), {}, [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                              EngineFixture::Make(bootstrap, DirectExchanges(), size_t{1} << 20));
        WEFT_ASSIGN_OR_RETURN(const std::vector<Buffer> taken, TakeAllBut(*fixture.pool, kFreeBytes));
        return body(fixture, bootstrap.rank());
      });
  EXPECT_OK(report.status());
}

TEST(ScarceMemory, HoldsTheRingsOfStridedExchanges) {
  RunWithLittleMemory([](EngineFixture& fixture, int rank) -> absl::Status {
    Parts sent, received;
    std::vector<TensorView> sends, receives;
    for (int64_t peer = 0; peer < kScarceRanks; ++peer) {
      for (int64_t i = 0; i < kScarcePart; ++i)
        sent.whole[static_cast<size_t>(i * kScarceRanks + peer)] = Value(rank, static_cast<int>(peer), i);
      const size_t offset = static_cast<size_t>(peer) * sizeof(float);
      sends.push_back({sent.data() + offset, DType::kF32, {kScarcePart}, {kScarceRanks}});
      receives.push_back({received.data() + offset, DType::kF32, {kScarcePart}, {kScarceRanks}});
    }
    WEFT_RETURN_IF_ERROR(fixture.engine->AllToAll(fixture.lane, sends, receives, DType::kF32).WaitReleased());
    int64_t wrong = 0;
    for (int64_t peer = 0; peer < kScarceRanks; ++peer) {
      for (int64_t i = 0; i < kScarcePart; ++i) {
        const float value = received.whole[static_cast<size_t>(i * kScarceRanks + peer)];
        if (value != Value(static_cast<int>(peer), rank, i)) ++wrong;
      }
    }
    EXPECT_EQ(wrong, 0);
    return absl::OkStatus();
  });
}

TEST(ScarceMemory, HoldsTheWindowsOfReductions) {
  RunWithLittleMemory([](EngineFixture& fixture, int rank) -> absl::Status {
    Parts input;
    std::iota(input.whole.begin(), input.whole.end(), static_cast<float>(rank));
    std::vector<float> sum(kScarcePart);
    WEFT_RETURN_IF_ERROR(fixture.engine
                             ->ReduceScatter(fixture.lane, input.data(),
                                             reinterpret_cast<std::byte*>(sum.data()), DType::kF32,
                                             kScarceRanks * kScarcePart, ReduceOp::kSum)
                             .WaitReleased());
    std::vector<float> expected(kScarcePart);
    for (int64_t i = 0; i < kScarcePart; ++i) {
      const int64_t place = rank * kScarcePart + i;
      const int64_t sum_of_ranks = kScarceRanks * (kScarceRanks - 1) / 2;
      expected[static_cast<size_t>(i)] = static_cast<float>(kScarceRanks * place + sum_of_ranks);
    }
    EXPECT_EQ(sum, expected);
    return absl::OkStatus();
  });
}

TEST(ScarceMemory, HoldsTheRingsOfCompressedGathers) {
  RunWithLittleMemory([](EngineFixture& fixture, int rank) -> absl::Status {
    std::vector<float> own(kScarcePart);
    std::iota(own.begin(), own.end(), static_cast<float>(rank * kScarcePart));
    Parts gathered;
    OpOptions options;
    options.wire_compression = WireCompression::kLossless;
    WEFT_RETURN_IF_ERROR(fixture.engine
                             ->AllGather(fixture.lane, reinterpret_cast<const std::byte*>(own.data()),
                                         gathered.data(), DType::kF32, kScarceRanks * kScarcePart, {},
                                         options)
                             .WaitReleased());
    std::vector<float> expected(kScarceRanks * kScarcePart);
    std::iota(expected.begin(), expected.end(), 0.0F);
    EXPECT_EQ(gathered.whole, expected);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
