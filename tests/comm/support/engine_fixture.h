// Fixture of one rank: heap, pool, engine and a lane of the world. Also test buffers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/rank_engine.h"
#include "tests/support/test_timeout.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/memory/buffer_pool.h"
#include "weft/mesh/world_group.h"

namespace weft::testing {

// Group of the ranks on this node.
inline ProcessGroup RanksOfThisNode(const Bootstrap& bootstrap) {
  ProcessGroup group{"node", bootstrap.node_map().RanksOf(bootstrap.node()), 0};
  while (group.ranks[static_cast<size_t>(group.group_rank)] != bootstrap.rank()) ++group.group_rank;
  return group;
}

// Group of the ranks that share images with this rank.
inline ProcessGroup RanksOfThisDomain(const CommEngine& engine) {
  const NodeMap& domains = engine.share_domains().map;
  const int me = engine.bootstrap().rank();
  ProcessGroup group{"domain", domains.RanksOf(domains.node_of_rank[static_cast<size_t>(me)]), 0};
  while (group.ranks[static_cast<size_t>(group.group_rank)] != me) ++group.group_rank;
  return group;
}

constexpr size_t kSmallSegmentBytes = size_t{16} << 20;

// Several slices, pieces and windows for a few thousand elements.
inline EngineOptions SmallSliceOptions() {
  EngineOptions options;
  options.timeout = kTestTimeout;
  options.slice_bytes = 512;
  options.piece_bytes = 1024;
  options.lane_window_bytes = 2048;
  options.yield_window_bytes = 1024;
  return options;
}

struct EngineFixture : RankEngine {
  LaneId lane;  // A lane of all ranks.

  static absl::StatusOr<EngineFixture> Make(Bootstrap& bootstrap, const EngineOptions& options = {},
                                            size_t segment_bytes = size_t{256} << 20) {
    WEFT_ASSIGN_OR_RETURN(
        RankEngine rank,
        RankEngine::Make(bootstrap, options, {.segment_bytes = segment_bytes, .poison_released = true}));
    return Make(bootstrap, std::move(rank), LanePurpose::kAllGather);
  }
  static absl::StatusOr<EngineFixture> Make(Bootstrap& bootstrap, RankEngine rank, LanePurpose purpose) {
    EngineFixture fixture{std::move(rank), {}};
    WEFT_ASSIGN_OR_RETURN(fixture.lane, fixture.engine->AddLane(WorldGroup(bootstrap), purpose));
    return fixture;
  }
};

// Barrier of all ranks that does not use the engine.
inline absl::Status BootstrapBarrier(Bootstrap& bootstrap) {
  return bootstrap.AllGatherBlob("", kTestTimeout).status();
}

// A buffer inside or outside node memory.
class TestBuffer {
 public:
  static absl::StatusOr<TestBuffer> Make(BufferPool& pool, bool in_node_memory, DType dtype, int64_t count) {
    TestBuffer buffer;
    buffer.dtype_ = dtype;
    const size_t bytes = static_cast<size_t>(BytesOf(count, dtype));
    if (in_node_memory) {
      WEFT_ASSIGN_OR_RETURN(buffer.node_, pool.Acquire(bytes));
    } else {
      buffer.own_.resize(bytes + 1);
    }
    return buffer;
  }
  // Wraps memory that the caller owns.
  static TestBuffer Of(std::byte* memory, DType dtype) {
    TestBuffer buffer;
    buffer.dtype_ = dtype;
    buffer.borrowed_ = memory;
    return buffer;
  }
  std::byte* data() {
    if (borrowed_ != nullptr) return borrowed_;
    return node_ ? node_.data() : own_.data();
  }
  std::byte* At(int64_t element) { return data() + BytesOf(element, dtype_); }

  // Values are rounded to the dtype.
  void Write(int64_t begin, const std::vector<double>& values) {
    if (WithNativeType(
            [&](auto element) { Copy(values, reinterpret_cast<decltype(element)*>(At(begin))); })) {
      return;
    }
    std::vector<float> narrow(values.size());
    Copy(values, narrow.data());
    ConvertRun(narrow.data(), DType::kF32, At(begin), dtype_, static_cast<int64_t>(narrow.size()));
  }
  std::vector<double> Read(int64_t begin, int64_t count) {
    std::vector<double> values;
    const auto read = [&](auto element) {
      values = ToDoubles(reinterpret_cast<decltype(element)*>(At(begin)), count);
    };
    if (WithNativeType(read)) return values;
    std::vector<float> wide(static_cast<size_t>(count));
    ConvertRun(At(begin), dtype_, wide.data(), DType::kF32, count);
    return {wide.begin(), wide.end()};
  }

 private:
  // Calls body(T{}) if the dtype is that of the C++ type T. False for BF16 and F16.
  template <typename Body>
  bool WithNativeType(const Body& body) const {
    switch (dtype_) {
      case DType::kBF16:
      case DType::kF16:
        return false;
      case DType::kF32:
        return body(float{}), true;
      case DType::kF64:
        return body(double{}), true;
      case DType::kI64:
        return body(int64_t{}), true;
      case DType::kI32:
        return body(int32_t{}), true;
      case DType::kI16:
        return body(int16_t{}), true;
      case DType::kI8:
        return body(int8_t{}), true;
      case DType::kU8:
        return body(uint8_t{}), true;
    }
    return false;
  }
  template <typename T>
  static void Copy(const std::vector<double>& values, T* out) {
    std::transform(values.begin(), values.end(), out, [](double value) { return static_cast<T>(value); });
  }
  template <typename T>
  static std::vector<double> ToDoubles(const T* values, int64_t count) {
    std::vector<double> doubles(static_cast<size_t>(count));
    std::transform(values, values + count, doubles.begin(),
                   [](T value) { return static_cast<double>(value); });
    return doubles;
  }

  DType dtype_ = DType::kF32;
  std::byte* borrowed_ = nullptr;
  Buffer node_;
  std::vector<std::byte> own_;
};

// Checks that an all-reduce of ones on the fixture's lane gives the number of ranks.
inline absl::Status CheckEngineWorks(EngineFixture& fixture) {
  const int ranks = fixture.engine->group(fixture.lane).size();
  constexpr int64_t kCount = 3000;
  WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, DType::kI32, kCount));
  buffer.Write(0, std::vector<double>(kCount, 1));
  Work work = fixture.engine->AllReduce(fixture.lane, buffer.data(), buffer.data(), DType::kI32, kCount,
                                        ReduceOp::kSum);
  WEFT_RETURN_IF_ERROR(work.Wait());
  WEFT_RETURN_IF_ERROR(work.WaitReleased());
  if (buffer.Read(0, kCount) == std::vector<double>(kCount, ranks)) return absl::OkStatus();
  return absl::InternalError("an all-reduce of ones did not give the number of ranks");
}

// Resets the engine until it works, or `limit` has passed.
inline absl::Status ResetUntilItWorks(EngineFixture& fixture, Runtime& runtime, absl::Duration limit) {
  const Deadline deadline(runtime, limit);
  absl::Status status;
  do {
    status = fixture.engine->ResetAfterError();
    if (status.ok()) status = CheckEngineWorks(fixture);
  } while (!status.ok() && !deadline.HasPassed());
  return status;
}

}  // namespace weft::testing
