#include "tests/comm/collectives/canonical_order.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/comm/support/random_values.h"
#include "weft/mesh/device_mesh.h"

namespace weft::testing {
namespace {

template <typename T>
typename Arithmetic<T>::Wide Tree(int ranks, int64_t i) {
  return TreeSum<T>(0, ranks, [i](int rank) { return Arithmetic<T>::Widen(Arithmetic<T>::Random(rank, i)); });
}

// Number of elements whose bits differ from the sum in the order of T(0, ranks).
template <typename T>
int64_t CountWrong(const std::byte* memory, int ranks, int64_t begin, int64_t count) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    const T expected = Arithmetic<T>::Narrow(Tree<T>(ranks, begin + i));
    // The bits count, also those of NaN and of zeros. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
    if (std::memcmp(memory + static_cast<size_t>(i) * sizeof(T), &expected, sizeof(T)) != 0) ++wrong;
  }
  return wrong;
}

template <typename T>
absl::StatusOr<Buffer> RandomInput(BufferPool& pool, int rank, int64_t count) {
  WEFT_ASSIGN_OR_RETURN(Buffer input, pool.Acquire(static_cast<size_t>(count) * sizeof(T)));
  for (int64_t i = 0; i < count; ++i) {
    const T value = Arithmetic<T>::Random(rank, i);
    std::memcpy(input.data() + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
  }
  return input;
}

template <typename T>
absl::Status CheckReduceScatter(EngineFixture& fixture, const std::vector<int64_t>& counts) {
  const ProcessGroup& group = fixture.engine->group(fixture.lane);
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const int64_t begin = std::accumulate(counts.begin(), counts.begin() + group.group_rank, int64_t{0});
  const int64_t own = counts[static_cast<size_t>(group.group_rank)];
  WEFT_ASSIGN_OR_RETURN(Buffer input, RandomInput<T>(*fixture.pool, group.group_rank, total));
  WEFT_ASSIGN_OR_RETURN(Buffer output, fixture.pool->Acquire(static_cast<size_t>(own) * sizeof(T)));
  Work work = fixture.engine->ReduceScatter(fixture.lane, input.data(), output.data(), kDTypeOf<T>, total,
                                            ReduceOp::kSum, counts);
  WEFT_RETURN_IF_ERROR(work.Wait());
  EXPECT_EQ(CountWrong<T>(output.data(), group.size(), begin, own), 0) << "reduce_scatter";
  return work.WaitReleased();
}

template <typename T>
absl::Status CheckAllReduce(EngineFixture& fixture, int64_t count) {
  const ProcessGroup& group = fixture.engine->group(fixture.lane);
  WEFT_ASSIGN_OR_RETURN(Buffer buffer, RandomInput<T>(*fixture.pool, group.group_rank, count));
  Work work = fixture.engine->AllReduce(fixture.lane, buffer.data(), buffer.data(), kDTypeOf<T>, count,
                                        ReduceOp::kSum);
  WEFT_RETURN_IF_ERROR(work.Wait());
  EXPECT_EQ(CountWrong<T>(buffer.data(), group.size(), 0, count), 0) << "all_reduce";
  return work.WaitReleased();
}

template <typename T>
absl::Status CheckTyped(EngineFixture& fixture, int64_t count) {
  const int ranks = fixture.engine->group(fixture.lane).size();
  std::vector<int64_t> uneven;
  for (int rank = 0; rank < ranks; ++rank) uneven.push_back(rank % 3 == 1 ? 0 : count + 3 * rank);
  WEFT_RETURN_IF_ERROR(
      CheckReduceScatter<T>(fixture, std::vector<int64_t>(static_cast<size_t>(ranks), count)));
  WEFT_RETURN_IF_ERROR(CheckReduceScatter<T>(fixture, uneven));
  return CheckAllReduce<T>(fixture, count * ranks + 5);
}

}  // namespace

absl::Status CheckCanonicalOrder(EngineFixture& fixture, DType dtype, int64_t count) {
  SCOPED_TRACE(absl::StrCat(ToAbsl(Name(dtype)), ", ", count, " elements a rank"));
  return WithType(dtype, [&](auto value) { return CheckTyped<decltype(value)>(fixture, count); });
}

absl::Status CheckHybridReduction(EngineFixture& fixture, int shard_size, int64_t count) {
  const int rank = fixture.engine->bootstrap().rank();
  const int ranks = fixture.engine->bootstrap().size();
  SCOPED_TRACE(absl::StrCat("replicate ", ranks / shard_size, " x shard ", shard_size));
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        DeviceMesh::Create({{"replicate", -1}, {"shard", shard_size}}, ranks));
  WEFT_ASSIGN_OR_RETURN(const ProcessGroup shard, mesh.Group({"shard"}, rank));
  WEFT_ASSIGN_OR_RETURN(const ProcessGroup replicate, mesh.Group({"replicate"}, rank));
  CommEngine& engine = *fixture.engine;
  WEFT_ASSIGN_OR_RETURN(const LaneId shard_lane, engine.AddLane(shard, LanePurpose::kReduceScatter));
  WEFT_ASSIGN_OR_RETURN(const LaneId replicate_lane, engine.AddLane(replicate, LanePurpose::kAllReduce));

  WEFT_ASSIGN_OR_RETURN(Buffer input, RandomInput<float>(*fixture.pool, rank, count * shard_size));
  WEFT_ASSIGN_OR_RETURN(Buffer output, fixture.pool->Acquire(static_cast<size_t>(count) * sizeof(float)));
  Work scatter = engine.ReduceScatter(shard_lane, input.data(), output.data(), DType::kF32,
                                      count * shard_size, ReduceOp::kSum);
  Work reduce = engine.AllReduce(replicate_lane, output.data(), output.data(), DType::kF32, count,
                                 ReduceOp::kSum, {}, &scatter);
  WEFT_RETURN_IF_ERROR(reduce.Wait());
  EXPECT_EQ(CountWrong<float>(output.data(), ranks, shard.group_rank * count, count), 0);
  WEFT_RETURN_IF_ERROR(scatter.WaitReleased());
  return reduce.WaitReleased();
}

}  // namespace weft::testing
