#include "tests/comm/random_programs/program_values.h"

#include <cstring>
#include <numeric>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tests/comm/support/random_values.h"
#include "weft/core/status.h"

namespace weft::testing {
namespace {

// Offset of the values of operation `index` in the random sequence of each rank.
int64_t ValuesOf(int index) { return int64_t{index} << 24; }

// Compares memory with the elements expected(T{}, i).
template <typename Expected>
absl::Status Compare(int index, DType dtype, int64_t count, const std::byte* memory,
                     const Expected& expected) {
  return WithType(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < count; ++i) {
      const T value = expected(T{}, i);
      if (std::memcmp(memory + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T)) == 0) continue;
      return absl::DataLossError(absl::StrCat("op ", index, ": element ", i, " of ", count, " is wrong"));
    }
    return absl::OkStatus();
  });
}

// Compares memory with the values that one rank contributed.
absl::Status CompareWith(int index, DType dtype, int rank, int64_t begin, int64_t count,
                         const std::byte* memory) {
  return Compare(index, dtype, count, memory, [&](auto type, int64_t i) {
    return Arithmetic<decltype(type)>::Random(rank, ValuesOf(index) + begin + i);
  });
}

}  // namespace

std::vector<int64_t> PartsOf(const ProgramOp& op, int ranks) {
  std::vector<int64_t> parts(static_cast<size_t>(ranks), op.count);
  for (int rank = 0; op.uneven && rank < ranks; ++rank) {
    parts[static_cast<size_t>(rank)] = rank % 3 == 1 ? 0 : op.count + rank;
  }
  return parts;
}

int64_t Sum(const std::vector<int64_t>& parts, int first) {
  return std::accumulate(parts.begin(), parts.begin() + first, int64_t{0});
}
int64_t Sum(const std::vector<int64_t>& parts) { return Sum(parts, static_cast<int>(parts.size())); }

int64_t ExchangeCount(const ProgramOp& op, int from, int to) {
  return op.uneven && (from + to) % 3 == 1 ? 0 : op.count + (op.uneven ? from : 0);
}

ProgramValues::ProgramValues(ProcessGroup world, ProcessGroup shard, ProcessGroup replicate)
    : world_(std::move(world)), shard_(std::move(shard)), replicate_(std::move(replicate)) {}

void ProgramValues::Fill(int index, DType dtype, int rank, int64_t begin, int64_t count, std::byte* memory) {
  WithType(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < count; ++i) {
      const T value = Arithmetic<T>::Random(rank, ValuesOf(index) + begin + i);
      std::memcpy(memory + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
    }
  });
}

absl::Status ProgramValues::CheckGather(int index, const ProgramOp& op, const std::vector<int64_t>& parts,
                                        const std::byte* image) const {
  const ProcessGroup& group = op.whole_world ? world_ : shard_;
  for (int member = 0; member < group.size(); ++member) {
    const int64_t count = parts[static_cast<size_t>(member)];
    const int rank = group.ranks[static_cast<size_t>(member)];
    WEFT_RETURN_IF_ERROR(CompareWith(index, op.dtype, rank, 0, count, image));
    image += static_cast<size_t>(count) * SizeOf(op.dtype);
  }
  return absl::OkStatus();
}

absl::Status ProgramValues::CheckDeltaBase(int index, const ProgramOp& op, const std::vector<int64_t>& parts,
                                           const std::byte* base) const {
  const ProcessGroup& group = op.whole_world ? world_ : shard_;
  const auto me = static_cast<size_t>(group.group_rank);
  return CompareWith(index, op.dtype, group.ranks[me], 0, parts[me], base);
}

absl::Status ProgramValues::CheckReduction(int index, const ProgramOp& op, const std::vector<int64_t>& parts,
                                           const std::byte* own) const {
  const int64_t begin = ValuesOf(index) + Sum(parts, shard_.group_rank);
  const int64_t count = parts[static_cast<size_t>(shard_.group_rank)];
  return Compare(index, op.dtype, count, own, [&](auto type, int64_t i) {
    using T = decltype(type);
    using A = Arithmetic<T>;
    const int shards = shard_.size();
    // Sums are rounded once after the shard group, and once after the replicate group.
    return A::Narrow(TreeSum<T>(0, replicate_.size(), [&](int replica) {
      return A::Widen(A::Narrow(TreeSum<T>(
          0, shards, [&](int shard) { return A::Widen(A::Random(replica * shards + shard, begin + i)); })));
    }));
  });
}

absl::Status ProgramValues::CheckAllReduce(int index, const ProgramOp& op, const std::byte* output) const {
  return Compare(index, op.dtype, op.count, output, [&](auto type, int64_t i) {
    using T = decltype(type);
    using A = Arithmetic<T>;
    return A::Narrow(TreeSum<T>(0, world_.size(),
                                [&](int rank) { return A::Widen(A::Random(rank, ValuesOf(index) + i)); }));
  });
}

absl::Status ProgramValues::CheckExchange(int index, const ProgramOp& op, const std::vector<int64_t>& parts,
                                          const std::byte* output) const {
  for (int peer = 0; peer < world_.size(); ++peer) {
    const std::byte* part = output + static_cast<size_t>(Sum(parts, peer)) * SizeOf(op.dtype);
    WEFT_RETURN_IF_ERROR(CompareWith(index, op.dtype, peer, ExchangeBegin(world_.group_rank),
                                     parts[static_cast<size_t>(peer)], part));
  }
  return absl::OkStatus();
}

absl::Status ProgramValues::CheckBroadcast(int index, const ProgramOp& op, const std::byte* output) const {
  return CompareWith(index, op.dtype, op.root % world_.size(), 0, op.count, output);
}

}  // namespace weft::testing
