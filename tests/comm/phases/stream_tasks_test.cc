// Tasks of streams: how many slices they move on slow and fast links, and what they write.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/comm/base/view_table.h"
#include "src/comm/phases/reduce_phase.h"
#include "tests/comm/phases/operation_fixture.h"
#include "weft/core/status.h"

namespace weft::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Takes all memory of the pool.
std::vector<Buffer> TakeAll(BufferPool& pool) {
  std::vector<Buffer> taken;
  for (size_t bytes = size_t{1} << 22; bytes >= 64; bytes /= 2) {
    for (absl::StatusOr<Buffer> buffer = pool.Acquire(bytes); buffer.ok(); buffer = pool.Acquire(bytes)) {
      taken.push_back(*std::move(buffer));
    }
  }
  return taken;
}

TEST(ScratchSlots, AreThoseForWhichThereIsMemory) {
  WithOperation([](const OperationFixture& operation) -> absl::Status {
    ScratchSlots slots(kSlice);
    WEFT_ASSIGN_OR_RETURN(std::byte* const first, slots.Take(operation.context));
    WEFT_ASSIGN_OR_RETURN(std::byte* const second, slots.Take(operation.context));
    EXPECT_NE(first, second);
    const std::vector<Buffer> taken = TakeAll(operation.context.scratch);
    WEFT_ASSIGN_OR_RETURN(std::byte* const third, slots.Take(operation.context));
    EXPECT_EQ(third, nullptr);
    slots.Return(first);
    WEFT_ASSIGN_OR_RETURN(std::byte* const again, slots.Take(operation.context));
    EXPECT_EQ(again, first);
    ScratchSlots others(kSlice);
    EXPECT_TRUE(absl::IsResourceExhausted(others.Take(operation.context).status()));
    return absl::OkStatus();
  });
}

// The rings of many streams shrink, to a slice each if there is no memory for more.
TEST(RingSlices, TakeAQuarterOfTheFreeMemoryOrASliceEach) {
  constexpr int64_t kInAll = 16;
  constexpr int64_t kOfOneSum = 96;
  constexpr int64_t kInEach = 4;
  WithOperation([&](const OperationFixture& operation) {
    const BufferPool& pool = operation.context.scratch;
    std::vector<Buffer> taken = TakeAll(operation.context.scratch);
    while (true) {
      const auto quarter = static_cast<int64_t>(pool.free_bytes() / 4 / kSlice);
      for (const int64_t rings : {1, 2, 5, 16, 100, 1000, 20'000}) {
        for (const RingUse use : {RingUse::kEven, RingUse::kReduction}) {
          const bool is_sum = use == RingUse::kReduction;
          SCOPED_TRACE(absl::StrCat(rings, is_sum ? " rings of sums" : " rings", ", a quarter has ", quarter,
                                    " slices"));
          const int64_t each = RingSlices(operation.context, rings, use);
          const int64_t wanted = std::max(kInEach, (is_sum && rings == 1 ? kOfOneSum : kInAll) / rings);
          const int64_t most = std::max(kInAll, quarter);
          EXPECT_GE(each, 1);
          EXPECT_LE(each, wanted);
          EXPECT_TRUE(each == 1 || each * rings <= most) << each;
          EXPECT_TRUE(each == wanted || (each + 1) * rings > most) << each;
        }
      }
      if (taken.empty()) return absl::OkStatus();
      taken.pop_back();
    }
  });
}

TEST(CopyTask, HasARunOfSlicesOnAFastLink) {
  WithOperation([](const OperationFixture& operation) {
    const Slicing slicing{25 * kSliceElements - 3, kSliceElements};
    std::vector<float> source = Numbers(slicing.elements, 1);
    std::vector<float> target(source.size());
    CopyStream slow(slicing, DType::kF32, MemoryOf(source), MemoryOf(target), /*nontemporal=*/false);
    EXPECT_THAT(Finish(operation, slow, 5), Each(1));
    EXPECT_EQ(slow.done(), 5);

    operation.MakeLinkFast();
    EXPECT_THAT(Finish(operation, slow, slicing.slices()), ElementsAre(10, 10));
    EXPECT_TRUE(slow.finished());
    EXPECT_EQ(target, source);
    return absl::OkStatus();
  });
}

TEST(CopyTask, EndsWithWhatIsAvailable) {
  WithOperation([](const OperationFixture& operation) {
    operation.MakeLinkFast();
    const Slicing slicing{12 * kSliceElements, kSliceElements};
    std::vector<float> source = Numbers(slicing.elements, 1);
    std::vector<float> target(source.size());
    CopyStream copy(slicing, DType::kF32, MemoryOf(source), MemoryOf(target), /*nontemporal=*/false);
    EXPECT_THAT(Finish(operation, copy, 5), ElementsAre(5));
    EXPECT_THAT(Finish(operation, copy, slicing.slices()), ElementsAre(7));
    EXPECT_EQ(target, source);
    return absl::OkStatus();
  });
}

// A part in ranges of several lengths, in another order than in their buffer, with gaps between them. Some
// slices lie in one range, such as the first, and others in several.
class PartInRanges {
 public:
  explicit PartInRanges(int64_t elements) {
    constexpr std::array<int64_t, 6> kLengths = {1, 60, 90, 24, 25, 2};
    std::vector<ElementRange> cut;
    int64_t left = elements;
    int64_t end = 0;  // Of the last range in the buffer.
    while (left > 0) {
      cut.push_back({end + 2, std::min(kLengths[cut.size() % kLengths.size()], left)});
      end = cut.back().end();
      left -= cut.back().count;
    }
    for (size_t i = 0; i + 1 < cut.size(); i += 2) std::swap(cut[i], cut[i + 1]);
    const std::vector<std::vector<ElementRange>> parts = {std::move(cut)};
    parts_ = PartRanges::Make(parts).value();
    buffer_.resize(static_cast<size_t>(parts_->extent()), kGap);
  }
  // A part with these elements.
  explicit PartInRanges(const std::vector<float>& elements)
      : PartInRanges(static_cast<int64_t>(elements.size())) {
    for (const PartRanges::PlacedRange& placed : ranges())
      std::copy_n(elements.begin() + placed.place, placed.range.count, buffer_.begin() + placed.range.begin);
  }

  absl::Span<const PartRanges::PlacedRange> ranges() const { return parts_->part(0); }
  SliceMemory memory() {
    SliceMemory memory = MemoryOf(buffer_);
    memory.ranges = ranges();
    return memory;
  }
  std::vector<float> elements() const {
    std::vector<float> elements(static_cast<size_t>(parts_->total()));
    for (const PartRanges::PlacedRange& placed : ranges())
      std::copy_n(buffer_.begin() + placed.range.begin, placed.range.count, elements.begin() + placed.place);
    return elements;
  }
  // Elements of the buffer that are in no range and still have their first value.
  int64_t gaps() const { return std::count(buffer_.begin(), buffer_.end(), kGap); }
  // A view for each range, in the order of the buffer.
  std::vector<SourceView> views() const {
    std::vector<SourceView> views;
    for (const PartRanges::PlacedRange& placed : ranges())
      views.push_back({placed.range, &buffer_[static_cast<size_t>(placed.range.begin)]});
    std::sort(views.begin(), views.end(),
              [](const SourceView& a, const SourceView& b) { return a.range.begin < b.range.begin; });
    return views;
  }

 private:
  static constexpr float kGap = -1;
  std::shared_ptr<const PartRanges> parts_;
  std::vector<float> buffer_;
};

TEST(CopyTask, HasARunOfSlicesOfPartsInRanges) {
  WithOperation([](const OperationFixture& operation) {
    operation.MakeLinkFast();
    const Slicing slicing{25 * kSliceElements - 3, kSliceElements};
    const auto copy = [&](SliceMemory source, SliceMemory target) {
      CopyStream stream(slicing, DType::kF32, source, target, /*nontemporal=*/false);
      EXPECT_THAT(Finish(operation, stream, slicing.slices()), ElementsAre(10, 10, 5));
    };
    std::vector<float> numbers = Numbers(slicing.elements, 1);
    PartInRanges source(numbers);
    std::vector<float> end_to_end(numbers.size());
    copy(source.memory(), MemoryOf(end_to_end));
    EXPECT_EQ(end_to_end, numbers);

    PartInRanges target(slicing.elements);
    const int64_t gaps = target.gaps() - slicing.elements;
    copy(MemoryOf(numbers), target.memory());
    EXPECT_EQ(target.elements(), numbers);
    EXPECT_EQ(target.gaps(), gaps);

    PartInRanges other(slicing.elements);
    copy(source.memory(), other.memory());
    EXPECT_EQ(other.elements(), numbers);
    EXPECT_EQ(other.gaps(), gaps);
    return absl::OkStatus();
  });
}

// A peer reads a slice of the ring while the next one is written.
TEST(CopyTask, HasOneSliceOfARing) {
  WithOperation([](const OperationFixture& operation) {
    operation.MakeLinkFast();
    const Slicing slicing{12 * kSliceElements, kSliceElements};
    std::vector<float> ring = Numbers(8 * kSliceElements, 1);
    std::vector<float> target(static_cast<size_t>(slicing.elements));
    CopyStream copy(slicing, DType::kF32, MemoryOf(ring, 8), MemoryOf(target), /*nontemporal=*/false);
    EXPECT_THAT(Finish(operation, copy, slicing.slices()), Each(1));
    std::vector<float> expected = ring;
    expected.insert(expected.end(), ring.begin(), ring.begin() + 4 * kSliceElements);
    EXPECT_EQ(target, expected);
    return absl::OkStatus();
  });
}

// The input of the rank that reduces: one block, a part in ranges, a part in views, or zeros in place of a
// view.
enum class Own : uint8_t { kBlock, kRanges, kViews, kZeros };

// Two remote ranks send their inputs, and the sum of three is the result. A task that writes many copies of
// it moves as many bytes as one of several slices. Zeros in place of a view have the memory of one slice, so
// a task has one slice of any input in views.
TEST(ReduceTask, AddsARunOfSlicesOnAFastLink) {
  struct Case {
    bool is_fast;
    size_t copies;
    Own own_input = Own::kBlock;
  };
  for (const auto& [is_fast, copies, own_input] :
       {Case{false, 0}, Case{true, 0}, Case{true, 1}, Case{true, 30}, Case{false, 0, Own::kRanges},
        Case{true, 0, Own::kRanges}, Case{true, 1, Own::kRanges}, Case{true, 0, Own::kViews},
        Case{true, 0, Own::kZeros}}) {
    SCOPED_TRACE(
        absl::StrCat(is_fast ? "fast, " : "slow, ", copies, " copies, input ", static_cast<int>(own_input)));
    WithOperation([is_fast = is_fast, copies = copies,
                   own_input = own_input](const OperationFixture& operation) -> absl::Status {
      if (is_fast) operation.MakeLinkFast();
      const OperationContext& context = operation.context;
      const Slicing slicing{90 * kSliceElements - 3, kSliceElements};
      std::vector<float> own = own_input == Own::kZeros
                                   ? std::vector<float>(static_cast<size_t>(slicing.elements))
                                   : Numbers(slicing.elements, 1);
      PartInRanges part(own);
      const std::vector<std::byte> zeros(static_cast<size_t>(kSlice));
      const std::vector<SourceView> views = part.views();
      std::vector<const std::byte*> data;
      for (const SourceView& view : views)
        data.push_back(own_input == Own::kZeros ? nullptr : static_cast<const std::byte*>(view.data));
      const ViewTable table(views, std::move(data), sizeof(float), zeros);
      SliceMemory own_memory = own_input == Own::kBlock ? MemoryOf(own) : part.memory();
      if (own_input >= Own::kViews) own_memory.views = &table;
      std::vector<std::vector<float>> sums(1 + copies, std::vector<float>(own.size()));
      ReduceTarget target{MemoryOf(sums[0]).base, DType::kF32};
      for (size_t copy = 1; copy <= copies; ++copy) target.copies.push_back(MemoryOf(sums[copy]).base);
      const std::array<std::vector<float>, 3> inputs = {own, Numbers(slicing.elements, 1000),
                                                        Numbers(slicing.elements, 20'000)};
      WEFT_ASSIGN_OR_RETURN(
          const std::unique_ptr<WindowedReduce> reduce,
          WindowedReduce::Create(context, {slicing, DType::kF32, ReduceOp::kSum, std::move(target),
                                           /*crossing_outputs=*/0, StagesOf(context.placement, /*fan_in=*/32),
                                           [&](const StageInput& /*input*/) -> ReduceStream::Leaf {
                                             return {own_memory, DType::kF32};
                                           },
                                           [](int subtree) -> WindowedReduce::Remote {
                                             return {{.lane = 2, .sequence = 1, .peer = subtree, .number = 1},
                                                     DType::kF32,
                                                     /*lies_in_part=*/true};
                                           },
                                           /*domain_sums=*/nullptr}));
      std::array<size_t, 3> sent{};  // Elements, by rank.
      std::vector<int64_t> slices;
      while (!reduce->finished()) {
        WEFT_ASSIGN_OR_RETURN(const bool advanced, reduce->Step(operation.context));
        for (const auto& [request, receive] : operation.end.link.in_flight) {
          size_t& first = sent[static_cast<size_t>(receive.peer)];
          std::memcpy(const_cast<void*>(receive.memory), &inputs[static_cast<size_t>(receive.peer)][first],
                      receive.bytes);
          first += receive.bytes / sizeof(float);
        }
        operation.end.link.FinishAll();
        WEFT_ASSIGN_OR_RETURN(const bool arrived, operation.end.scheduler.Poll(/*now_ns=*/2'000'000));
        const std::vector<int64_t> run = operation.tasks.RunAll();
        slices.insert(slices.end(), run.begin(), run.end());
        if (!advanced && !arrived && run.empty())
          return absl::InternalError("the reduction does not advance");
      }
      std::vector<float> expected(own.size());
      for (size_t i = 0; i < own.size(); ++i) expected[i] = inputs[0][i] + inputs[1][i] + inputs[2][i];
      EXPECT_THAT(sums, Each(expected));
      if (is_fast && copies <= 1 && own_input < Own::kViews) {
        EXPECT_LT(slices.size() * CreditScheduler::kFewestInRun, 90U);
      } else {
        EXPECT_THAT(slices, Each(1));
      }
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace weft::testing
