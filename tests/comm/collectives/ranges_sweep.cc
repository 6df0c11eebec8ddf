#include "tests/comm/collectives/ranges_sweep.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "src/comm/base/group_placement.h"
#include "tests/comm/support/random_values.h"
#include "tests/support/test_timeout.h"
#include "weft/memory/shared_block.h"

namespace weft::testing {
namespace {

constexpr uint64_t kDraws = 6;
constexpr int64_t kOld = int64_t{1} << 30;  // Offset of the random values before an operation.

using Parts = std::shared_ptr<const PartRanges>;

// Calls body(element of the buffer, element of the part).
template <typename Body>
void ForEachElement(const PartRanges& parts, int rank, Body body) {
  for (const PartRanges::PlacedRange& placed : parts.part(rank)) {
    for (int64_t i = 0; i < placed.range.count; ++i) body(placed.range.begin + i, placed.place + i);
  }
}

// Elements of a part in slices that no range holds whole.
int64_t CrossingElements(const PartRanges& parts, int rank, int64_t slice_elements) {
  int64_t crossing = 0;
  const int64_t count = parts.counts()[static_cast<size_t>(rank)];
  for (int64_t begin = 0; begin < count; begin += slice_elements) {
    const int64_t end = std::min(begin + slice_elements, count);
    const auto holds = [&](const PartRanges::PlacedRange& placed) {
      return placed.place <= begin && end <= placed.end_place();
    };
    const auto part = parts.part(rank);
    if (std::none_of(part.begin(), part.end(), holds)) crossing += end - begin;
  }
  return crossing;
}

// Everything about one operation on one rank.
struct Case {
  EngineFixture& fixture;
  const GroupPlacement& placement;
  Parts parts;
  OpOptions options;

  CommEngine& engine() const { return *fixture.engine; }
  int me() const { return placement.me(); }
  int64_t own() const { return parts->counts()[static_cast<size_t>(me())]; }
  int64_t Crossing(int rank, size_t element_bytes) const {
    return CrossingElements(*parts, rank,
                            engine().options().slice_bytes / static_cast<int64_t>(element_bytes)) *
           static_cast<int64_t>(element_bytes);
  }
};

// Bytes that a gather packs and unpacks on this rank. `sends_ranges`: its part is not end to end.
int64_t GatherCopies(const Case& c, bool sends_ranges, size_t element_bytes) {
  int64_t bytes = sends_ranges ? c.Crossing(c.me(), element_bytes) * (c.placement.node_count() - 1) : 0;
  for (int member = 0; member < c.placement.size(); ++member) {
    const int leader = c.placement.PartLeader(c.placement.NodeOf(c.me()), member);
    if (!c.placement.IsLocal(member) && leader == c.me()) bytes += c.Crossing(member, element_bytes);
  }
  return bytes;
}

// Bytes that a reduce-scatter packs on this rank: slices of its input that travel unreduced.
int64_t ReduceCopies(const Case& c, size_t element_bytes) {
  int64_t bytes = 0;
  for (const NodeSubtree& subtree : c.placement.subtrees()) {
    if (subtree.count != 1 || subtree.lo != c.me()) continue;
    for (int target = 0; target < c.placement.size(); ++target) {
      if (!c.placement.IsLocal(target)) bytes += c.Crossing(target, element_bytes);
    }
  }
  return bytes;
}

template <typename T>
void Store(std::byte* memory, int64_t element, T value) {
  std::memcpy(memory + static_cast<size_t>(element) * sizeof(T), &value, sizeof(T));
}

// Number of elements of memory that differ in bits from expected(i).
template <typename T, typename Expected>
int64_t CountWrong(const std::byte* memory, int64_t count, const Expected& expected) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    const T value = expected(i);
    // The bits count. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
    if (std::memcmp(memory + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T)) != 0) ++wrong;
  }
  return wrong;
}

// Values of a whole buffer: random ones of each part's rank from `offset` on, and `gap(i)` elsewhere.
template <typename T, typename Gap>
std::vector<T> WholeValues(const PartRanges& parts, int64_t offset, const Gap& gap) {
  std::vector<T> values;
  for (int64_t i = 0; i < parts.extent(); ++i) values.push_back(gap(i));
  for (int rank = 0; rank < parts.ranks(); ++rank) {
    ForEachElement(parts, rank, [&](int64_t element, int64_t place) {
      values[static_cast<size_t>(element)] = Arithmetic<T>::Random(rank, offset + place);
    });
  }
  return values;
}

template <typename T>
absl::StatusOr<Buffer> OwnPart(const Case& c, int64_t offset) {
  WEFT_ASSIGN_OR_RETURN(Buffer part, c.fixture.pool->Acquire(static_cast<size_t>(c.own()) * sizeof(T)));
  for (int64_t i = 0; i < c.own(); ++i) Store(part.data(), i, Arithmetic<T>::Random(c.me(), offset + i));
  return part;
}

template <typename T>
T GapValue(int64_t element) {
  return Arithmetic<T>::Random(1000, element);
}

// Waits for a gather and checks the whole output, with its gaps, and the copies.
template <typename T>
absl::Status CheckGather(const Case& c, Work work, const std::byte* output, int64_t copied_before,
                         int64_t copies) {
  WEFT_RETURN_IF_ERROR(work.Wait());
  const std::vector<T> expected = WholeValues<T>(*c.parts, 0, GapValue<T>);
  EXPECT_EQ(
      CountWrong<T>(output, c.parts->extent(), [&](int64_t i) { return expected[static_cast<size_t>(i)]; }),
      0);
  WEFT_RETURN_IF_ERROR(work.WaitReleased());
  EXPECT_EQ(c.engine().counters().copied_bytes - copied_before, copies);
  return absl::OkStatus();
}

template <typename T>
absl::Status Gather(const Case& c, bool in_place) {
  SCOPED_TRACE(in_place ? "in place" : "out of place");
  const int64_t before = c.engine().counters().copied_bytes;
  WEFT_ASSIGN_OR_RETURN(Buffer output,
                        c.fixture.pool->Acquire(static_cast<size_t>(c.parts->extent()) * sizeof(T)));
  for (int64_t i = 0; i < c.parts->extent(); ++i) Store(output.data(), i, GapValue<T>(i));
  WEFT_ASSIGN_OR_RETURN(const Buffer part, OwnPart<T>(c, 0));
  ForEachElement(*c.parts, c.me(), [&](int64_t element, int64_t place) {
    if (in_place) Store(output.data(), element, Arithmetic<T>::Random(c.me(), place));
  });
  Work work = c.engine().AllGather(c.fixture.lane, in_place ? output.data() : part.data(), output.data(),
                                   kDTypeOf<T>, c.parts, c.options);
  return CheckGather<T>(c, std::move(work), output.data(), before, GatherCopies(c, in_place, sizeof(T)));
}

// Every other rank gathers in place.
template <typename T>
absl::Status GatherShared(const Case& c) {
  SCOPED_TRACE("shared");
  const int64_t before = c.engine().counters().copied_bytes;
  const ProcessGroup domain = RanksOfThisDomain(c.engine());
  WEFT_ASSIGN_OR_RETURN(
      const auto blocks,
      ShareBlocks(c.engine().bootstrap(), *c.fixture.heap,
                  {{domain.ranks, static_cast<size_t>(c.parts->extent() + 1) * sizeof(T)}}, kTestTimeout));
  std::byte* output = blocks[0].data();
  if (domain.group_rank == 0) {
    for (int64_t i = 0; i < c.parts->extent(); ++i) Store(output, i, GapValue<T>(i));
  }
  WEFT_RETURN_IF_ERROR(BootstrapBarrier(c.engine().bootstrap()));
  WEFT_ASSIGN_OR_RETURN(const Buffer part, OwnPart<T>(c, 0));
  const bool in_place = c.me() % 2 == 0;
  ForEachElement(*c.parts, c.me(), [&](int64_t element, int64_t place) {
    if (in_place) Store(output, element, Arithmetic<T>::Random(c.me(), place));
  });
  Work work = c.engine().AllGatherShared(c.fixture.lane, in_place ? output : part.data(), output, kDTypeOf<T>,
                                         c.parts, c.options);
  WEFT_RETURN_IF_ERROR(
      CheckGather<T>(c, std::move(work), output, before, GatherCopies(c, in_place, sizeof(T))));
  return BootstrapBarrier(c.engine().bootstrap());
}

absl::Status GatherDelta(const Case& c) {
  SCOPED_TRACE("delta");
  using T = float;
  const int64_t before = c.engine().counters().copied_bytes;
  WEFT_ASSIGN_OR_RETURN(Buffer output,
                        c.fixture.pool->Acquire(static_cast<size_t>(c.parts->extent()) * sizeof(T)));
  const std::vector<T> old = WholeValues<T>(*c.parts, kOld, GapValue<T>);
  for (size_t i = 0; i < old.size(); ++i) Store(output.data(), static_cast<int64_t>(i), old[i]);
  WEFT_ASSIGN_OR_RETURN(const Buffer base, OwnPart<T>(c, kOld));
  ForEachElement(*c.parts, c.me(), [&](int64_t element, int64_t place) {
    Store(output.data(), element, Arithmetic<T>::Random(c.me(), place));
  });
  Work work = c.engine().AllGatherDelta(c.fixture.lane, base.data(), output.data(), c.parts, c.options);
  WEFT_RETURN_IF_ERROR(
      CheckGather<T>(c, std::move(work), output.data(), before, GatherCopies(c, true, sizeof(T))));
  EXPECT_EQ(CountWrong<T>(base.data(), c.own(), [&](int64_t i) { return Arithmetic<T>::Random(c.me(), i); }),
            0)
      << "base";
  return absl::OkStatus();
}

// Memory of a rank's source view. A view of zeros has none.
enum class ViewMemory : uint8_t { kNode, kPrivate, kZeros };
ViewMemory MemoryOf(int rank, size_t view) { return ViewMemory{static_cast<uint8_t>((rank + view) % 3)}; }

// Up to seven views of random lengths, some empty, that cover the buffer. Without data.
std::vector<SourceView> DrawViews(int64_t extent) {
  std::mt19937_64 random(static_cast<uint64_t>(extent));
  std::vector<int64_t> bounds = {0, extent};
  for (uint64_t i = random() % 7; i > 0; --i) {
    bounds.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(extent + 1)));
  }
  std::sort(bounds.begin(), bounds.end());
  std::vector<SourceView> views;
  for (size_t i = 1; i < bounds.size(); ++i) {
    views.push_back({{bounds[i - 1], bounds[i] - bounds[i - 1]}, nullptr});
  }
  return views;
}

// The case with its ranges cut at the bounds of views.
absl::StatusOr<Case> CutAt(const Case& c, absl::Span<const SourceView> views) {
  std::vector<std::vector<ElementRange>> ranges(static_cast<size_t>(c.parts->ranks()));
  for (int rank = 0; rank < c.parts->ranks(); ++rank) {
    for (const PartRanges::PlacedRange& placed : c.parts->part(rank)) {
      ranges[static_cast<size_t>(rank)].push_back(placed.range);
    }
  }
  WEFT_ASSIGN_OR_RETURN(Parts parts, PartRanges::Make(ranges, CutsOf(views)));
  return Case{c.fixture, c.placement, std::move(parts), c.options};
}

template <typename T>
absl::Status ReduceScatterViews(const Case& whole) {
  SCOPED_TRACE("views");
  std::vector<SourceView> views = DrawViews(whole.parts->extent());
  WEFT_ASSIGN_OR_RETURN(const Case c, CutAt(whole, views));
  const int64_t before = c.engine().counters().copied_bytes;
  std::vector<Buffer> node;
  std::vector<std::vector<std::byte>> own;
  int64_t staged = 0;
  for (size_t i = 0; i < views.size(); ++i) {
    const ElementRange range = views[i].range;
    const size_t bytes = static_cast<size_t>(range.count) * sizeof(T);
    std::byte* memory = nullptr;
    if (MemoryOf(c.me(), i) == ViewMemory::kNode) {
      WEFT_ASSIGN_OR_RETURN(node.emplace_back(), c.fixture.pool->Acquire(bytes));
      memory = node.back().data();
    } else if (MemoryOf(c.me(), i) == ViewMemory::kPrivate) {
      memory = own.emplace_back(bytes + 1).data();
      staged += static_cast<int64_t>(bytes);
    }
    for (int64_t k = 0; memory != nullptr && k < range.count; ++k) {
      Store(memory, k, Arithmetic<T>::Random(c.me(), range.begin + k));
    }
    views[i].data = memory;
  }
  if (c.placement.local_peers().empty()) staged = 0;
  WEFT_ASSIGN_OR_RETURN(const Buffer output,
                        c.fixture.pool->Acquire(static_cast<size_t>(c.own()) * sizeof(T)));
  Work work = c.engine().ReduceScatter(c.fixture.lane, views, output.data(), kDTypeOf<T>, ReduceOp::kSum,
                                       c.parts, c.options);
  WEFT_RETURN_IF_ERROR(work.Wait());
  std::vector<T> sums(static_cast<size_t>(c.own()));
  ForEachElement(*c.parts, c.me(), [&](int64_t element, int64_t place) {
    const auto view = std::find_if(views.begin(), views.end(),
                                   [&](const SourceView& each) { return element < each.range.end(); });
    const auto index = static_cast<size_t>(view - views.begin());
    sums[static_cast<size_t>(place)] = Arithmetic<T>::Narrow(TreeSum<T>(0, c.placement.size(), [&](int rank) {
      const bool zeros = MemoryOf(rank, index) == ViewMemory::kZeros;
      return Arithmetic<T>::Widen(zeros ? T{} : Arithmetic<T>::Random(rank, element));
    }));
  });
  EXPECT_EQ(CountWrong<T>(output.data(), c.own(), [&](int64_t i) { return sums[static_cast<size_t>(i)]; }),
            0);
  WEFT_RETURN_IF_ERROR(work.WaitReleased());
  EXPECT_EQ(c.engine().counters().copied_bytes - before, ReduceCopies(c, sizeof(T)) + staged);
  return absl::OkStatus();
}

template <typename T>
absl::Status ReduceScatter(const Case& c) {
  const int64_t before = c.engine().counters().copied_bytes;
  WEFT_ASSIGN_OR_RETURN(Buffer input,
                        c.fixture.pool->Acquire(static_cast<size_t>(c.parts->extent()) * sizeof(T)));
  for (int64_t i = 0; i < c.parts->extent(); ++i) Store(input.data(), i, Arithmetic<T>::Random(c.me(), i));
  WEFT_ASSIGN_OR_RETURN(const Buffer output,
                        c.fixture.pool->Acquire(static_cast<size_t>(c.own()) * sizeof(T)));
  Work work = c.engine().ReduceScatter(c.fixture.lane, input.data(), output.data(), kDTypeOf<T>,
                                       ReduceOp::kSum, c.parts, c.options);
  WEFT_RETURN_IF_ERROR(work.Wait());
  std::vector<int64_t> elements(static_cast<size_t>(c.own()));
  ForEachElement(*c.parts, c.me(),
                 [&](int64_t element, int64_t place) { elements[static_cast<size_t>(place)] = element; });
  const auto sum = [&](int64_t i) {
    return Arithmetic<T>::Narrow(TreeSum<T>(0, c.placement.size(), [&](int rank) {
      return Arithmetic<T>::Widen(Arithmetic<T>::Random(rank, elements[static_cast<size_t>(i)]));
    }));
  };
  EXPECT_EQ(CountWrong<T>(output.data(), c.own(), sum), 0);
  WEFT_RETURN_IF_ERROR(work.WaitReleased());
  EXPECT_EQ(c.engine().counters().copied_bytes - before, ReduceCopies(c, sizeof(T)));
  return absl::OkStatus();
}

// Runs `body` for drawn ranges of slices of `slice_elements`, and for a table of empty parts.
absl::Status ForEachDraw(EngineFixture& fixture, WireCompression wire_compression,
                         const std::function<absl::Status(const Case&)>& body) {
  const ProcessGroup& world = fixture.engine->group(fixture.lane);
  const GroupPlacement placement(world, fixture.engine->bootstrap().node_map());
  const int64_t slice_elements = fixture.engine->options().slice_bytes / 4;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    SCOPED_TRACE(absl::StrCat("ranges ", seed));
    auto ranges = DrawRanges(seed, world.size(), slice_elements);
    if (seed == 0) ranges.assign(ranges.size(), {});
    WEFT_ASSIGN_OR_RETURN(Parts parts, PartRanges::Make(ranges));
    OpOptions options;
    options.wire_compression = wire_compression;
    WEFT_RETURN_IF_ERROR(body({fixture, placement, std::move(parts), options}));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::vector<ElementRange>> DrawRanges(uint64_t seed, int ranks, int64_t slice_elements) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  std::vector<std::vector<ElementRange>> ranges(static_cast<size_t>(ranks));
  int64_t end = 0;
  for (int64_t i = pick(1, 5) * ranks; i > 0; --i) {
    const int64_t gap = pick(0, 2) == 0 ? pick(1, 9) : 0;
    const int64_t lengths[] = {0, 1, pick(1, 9), slice_elements, pick(1, 3 * slice_elements)};
    const ElementRange range{end + gap, lengths[pick(0, 4)]};
    end = range.end();
    const auto rank = static_cast<size_t>(pick(0, ranks - 1));
    ranges[rank].insert(pick(0, 3) == 0 ? ranges[rank].begin() : ranges[rank].end(), range);
  }
  return ranges;
}

absl::Status SweepGathersOfRanges(EngineFixture& fixture, WireCompression wire_compression) {
  return ForEachDraw(fixture, wire_compression, [](const Case& c) -> absl::Status {
    for (const bool in_place : {false, true}) {
      WEFT_RETURN_IF_ERROR(Gather<float>(c, in_place));
      WEFT_RETURN_IF_ERROR(Gather<BF16>(c, in_place));
      WEFT_RETURN_IF_ERROR(Gather<uint8_t>(c, in_place));
    }
    WEFT_RETURN_IF_ERROR(GatherShared<float>(c));
    WEFT_RETURN_IF_ERROR(GatherShared<BF16>(c));
    return GatherDelta(c);
  });
}

absl::Status SweepReduceScatterOfRanges(EngineFixture& fixture, WireCompression wire_compression) {
  return ForEachDraw(fixture, wire_compression, [](const Case& c) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ReduceScatter<float>(c));
    WEFT_RETURN_IF_ERROR(ReduceScatter<F16>(c));
    WEFT_RETURN_IF_ERROR(ReduceScatter<int64_t>(c));
    WEFT_RETURN_IF_ERROR(ReduceScatterViews<float>(c));
    return ReduceScatterViews<F16>(c);
  });
}

}  // namespace weft::testing
