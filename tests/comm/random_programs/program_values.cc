#include "tests/comm/random_programs/program_values.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tests/comm/random_programs/seeded_random.h"
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
      // The bits count. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
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

std::shared_ptr<const PartRanges> ScatterParts(const std::vector<int64_t>& parts, uint64_t seed) {
  SeededRandom random(seed);
  struct Cut {
    size_t rank;
    int64_t count;
  };
  std::vector<Cut> cuts;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (int64_t left = parts[rank]; left > 0; left -= cuts.back().count) {
      const int64_t most = std::min<int64_t>(left, 300);
      cuts.push_back({rank, random.Chance(25) ? 1 : random.Between(1, most)});
    }
  }
  for (size_t i = cuts.size(); i > 1; --i) {
    std::swap(cuts[i - 1], cuts[static_cast<size_t>(random.Between(0, static_cast<int64_t>(i) - 1))]);
  }
  std::vector<std::vector<ElementRange>> ranges(parts.size());
  int64_t end = 0;
  for (const Cut& cut : cuts) {
    ranges[cut.rank].push_back({end, cut.count});
    end += cut.count;
  }
  return PartRanges::Make(ranges).value();
}

namespace {

// Calls body(element in the buffer, element of the parts end to end, count).
template <typename Body>
void ForEachRange(const PartRanges& ranges, Body body) {
  int64_t begin = 0;
  for (int rank = 0; rank < ranges.ranks(); ++rank) {
    for (const PartRanges::PlacedRange& placed : ranges.part(rank)) {
      body(placed.range.begin, begin + placed.place, placed.range.count);
    }
    begin += ranges.counts()[static_cast<size_t>(rank)];
  }
}

}  // namespace

void CopyToRanges(const PartRanges& ranges, const std::byte* end_to_end, std::byte* buffer,
                  size_t element_bytes) {
  ForEachRange(ranges, [&](int64_t to, int64_t from, int64_t count) {
    std::memcpy(buffer + static_cast<size_t>(to) * element_bytes,
                end_to_end + static_cast<size_t>(from) * element_bytes,
                static_cast<size_t>(count) * element_bytes);
  });
}

std::vector<std::byte> PackRanges(const PartRanges& ranges, const std::byte* buffer, size_t element_bytes) {
  std::vector<std::byte> packed(static_cast<size_t>(ranges.total()) * element_bytes);
  ForEachRange(ranges, [&](int64_t from, int64_t to, int64_t count) {
    std::memcpy(packed.data() + static_cast<size_t>(to) * element_bytes,
                buffer + static_cast<size_t>(from) * element_bytes,
                static_cast<size_t>(count) * element_bytes);
  });
  return packed;
}

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
    image += static_cast<size_t>(BytesOf(count, op.dtype));
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
    const std::byte* part = output + BytesOf(Sum(parts, peer), op.dtype);
    WEFT_RETURN_IF_ERROR(CompareWith(index, op.dtype, peer, ExchangeBegin(world_.group_rank),
                                     parts[static_cast<size_t>(peer)], part));
  }
  return absl::OkStatus();
}

absl::Status ProgramValues::CheckBroadcast(int index, const ProgramOp& op, const std::byte* output) const {
  return CompareWith(index, op.dtype, op.root % world_.size(), 0, op.count, output);
}

}  // namespace weft::testing
