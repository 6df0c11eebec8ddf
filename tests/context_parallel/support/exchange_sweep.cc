#include "tests/context_parallel/support/exchange_sweep.h"

#include <cstring>
#include <random>
#include <utility>

#include <absl/functional/function_ref.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"
#include "weft/context_parallel/sequence_exchange.h"
#include "weft/core/strided_copy.h"
#include "weft/memory/pool_tensor.h"

namespace weft::testing {
Tensor WholeNumbers(const Shape& shape, uint64_t salt) {
  Tensor tensor = Tensor::Empty(DType::kF32, shape);
  std::mt19937 random(static_cast<uint32_t>(salt) + 1);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.As<float>()[i] = static_cast<float>(static_cast<int>(random() % 17) - 8);
  }
  return tensor;
}

namespace {

// An exchange over the group of the fixture's lane. It adds a lane, so each sweep makes one.
absl::StatusOr<std::unique_ptr<SequenceExchange>> MakeExchange(EngineFixture& fixture) {
  return SequenceExchange::Create(*fixture.engine, *fixture.pool, fixture.engine->group(fixture.lane));
}

// A contiguous copy of `window` in node memory.
absl::StatusOr<Tensor> InNodeMemory(EngineFixture& fixture, const TensorView& window) {
  WEFT_ASSIGN_OR_RETURN(Tensor copy, PoolTensor(*fixture.pool, window.dtype, window.shape));
  WEFT_RETURN_IF_ERROR(StridedCopy(window, copy.view()));
  return copy;
}

std::vector<float> Values(const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.elements()));
  const TensorView target = TensorView::Contiguous(values.data(), DType::kF32, view.shape);
  EXPECT_OK(StridedCopy(view, target));
  return values;
}

// Waits and compares the result with `expected`.
absl::Status ExpectResult(absl::StatusOr<PendingTensor> pending, const TensorView& expected) {
  WEFT_RETURN_IF_ERROR(pending.status());
  WEFT_ASSIGN_OR_RETURN(const Tensor result, pending->Wait());
  EXPECT_EQ(result.shape(), expected.shape);
  if (result.shape() == expected.shape) {
    EXPECT_EQ(Values(result.view()), Values(expected));
  }
  return absl::OkStatus();
}

double Dot(const TensorView& a, const TensorView& b) {
  const std::vector<float> x = Values(a);
  const std::vector<float> y = Values(b);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += double{x[i]} * y[i];
  return sum;
}

absl::StatusOr<double> SumOverRanks(Bootstrap& bootstrap, double value) {
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<std::string> blobs,
      bootstrap.AllGatherBlob({reinterpret_cast<const char*>(&value), sizeof(value)}, kTestTimeout));
  double sum = 0;
  for (const std::string& blob : blobs) {
    double one = 0;
    std::memcpy(&one, blob.data(), sizeof(one));
    sum += one;
  }
  return sum;
}

// Uneven sizes, some of them 0.
std::vector<int64_t> OddSizes(int ranks, int64_t step) {
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < ranks; ++rank) sizes.push_back(rank % 3 == 1 ? 0 : step + rank);
  return sizes;
}

// A whole tensor and the splits of two of its dims. Covers shapes of 2 to 5 dims and every pair of dims.
struct DimsCase {
  Shape whole;
  AllToAllPlan plan;
};
absl::Status ForEachPairOfDims(int ranks, int rank, absl::FunctionRef<absl::Status(const DimsCase&)> body) {
  for (int dims = 2; dims <= 5; ++dims) {
    for (int scatter = 0; scatter < dims; ++scatter) {
      for (int gather = 0; gather < dims; ++gather) {
        if (scatter == gather) continue;
        // Kinds: both even, one uneven, both uneven, given sizes. With many dims each pair takes one kind
        // only.
        for (int kind = 0; kind < 4; ++kind) {
          if (dims > 3 && kind != (scatter + 2 * gather) % 4) continue;
          Shape whole(static_cast<size_t>(dims), 2);
          const std::vector<int64_t> odd = OddSizes(ranks, 2);
          const int64_t odd_length = DimSplit{0, odd}.length();
          whole[static_cast<size_t>(scatter)] = kind == 3   ? odd_length
                                                : kind >= 1 ? 2 * ranks + 1
                                                            : 2 * ranks;
          whole[static_cast<size_t>(gather)] = kind == 3 ? odd_length : kind == 2 ? 3 * ranks - 1 : ranks;
          AllToAllSizes sizes;
          if (kind == 3) sizes.scatter = sizes.gather = odd;
          if (kind == 2) sizes.gather_length = whole[static_cast<size_t>(gather)];
          WEFT_ASSIGN_OR_RETURN(const DimSplit gathered,
                                DimSplit::OfWhole(whole, gather, ranks, sizes.gather));
          // Negative dims, counted from the end, must give the same plan.
          const bool from_end = (scatter + gather) % 2 == 0;
          WEFT_ASSIGN_OR_RETURN(
              const AllToAllPlan plan,
              AllToAllPlan::Make(gathered.PartShape(whole, rank), from_end ? scatter - dims : scatter,
                                 from_end ? gather - dims : gather, ranks, rank, sizes));
          SCOPED_TRACE(absl::StrCat(ToString(whole), ", scatter ", plan.scatter.ToString(), ", gather ",
                                    plan.gather.ToString()));
          WEFT_RETURN_IF_ERROR(body({whole, plan}));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SweepAllToAllBetweenDims(EngineFixture& fixture) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange, MakeExchange(fixture));
  const int rank = exchange->rank();
  int number = 0;
  return ForEachPairOfDims(exchange->ranks(), rank, [&](const DimsCase& c) -> absl::Status {
    const Tensor whole = WholeNumbers(c.whole, static_cast<uint64_t>(++number));
    const TensorView before = c.plan.gather.PartOf(whole.view(), rank);
    const TensorView after = c.plan.scatter.PartOf(whole.view(), rank);
    WEFT_ASSIGN_OR_RETURN(const Tensor input, InNodeMemory(fixture, before));
    WEFT_RETURN_IF_ERROR(ExpectResult(exchange->AllToAll(input, c.plan, "there"), after));
    // The way back starts from strided memory outside node memory.
    return ExpectResult(exchange->AllToAll(whole.Window(after), c.plan.Adjoint(), "back"), before);
  });
}

absl::Status SweepAdjoints(EngineFixture& fixture) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange, MakeExchange(fixture));
  Bootstrap& bootstrap = fixture.engine->bootstrap();
  const auto rank = static_cast<uint64_t>(exchange->rank());
  uint64_t number = 0;
  using Map = absl::FunctionRef<absl::StatusOr<PendingTensor>(const Tensor&)>;
  const auto check = [&](const Shape& in, const Shape& out, Map forward, Map backward) -> absl::Status {
    ++number;
    const Tensor x = WholeNumbers(in, 1000 * number + 2 * rank);
    const Tensor y = WholeNumbers(out, 1000 * number + 2 * rank + 1);
    WEFT_ASSIGN_OR_RETURN(PendingTensor mapped, forward(x));
    WEFT_ASSIGN_OR_RETURN(const Tensor ax, mapped.Wait());
    WEFT_ASSIGN_OR_RETURN(PendingTensor adjoint, backward(y));
    WEFT_ASSIGN_OR_RETURN(const Tensor aty, adjoint.Wait());
    WEFT_ASSIGN_OR_RETURN(const double left, SumOverRanks(bootstrap, Dot(ax.view(), y.view())));
    WEFT_ASSIGN_OR_RETURN(const double right, SumOverRanks(bootstrap, Dot(x.view(), aty.view())));
    EXPECT_EQ(left, right);
    return absl::OkStatus();
  };
  return ForEachPairOfDims(exchange->ranks(), exchange->rank(), [&](const DimsCase& c) -> absl::Status {
    if (c.whole.size() > 3) return absl::OkStatus();
    const DimSplit& split = c.plan.gather;
    WEFT_RETURN_IF_ERROR(check(
        split.PartShape(c.whole, exchange->rank()), c.plan.scatter.PartShape(c.whole, exchange->rank()),
        [&](const Tensor& x) { return exchange->AllToAll(x, c.plan); },
        [&](const Tensor& y) { return exchange->AllToAll(y, c.plan.Adjoint()); }));
    return check(
        split.PartShape(c.whole, exchange->rank()), c.whole,
        [&](const Tensor& x) { return exchange->AllGather(x, split); },
        [&](const Tensor& y) { return exchange->ReduceScatter(y, split); });
  });
}

absl::Status SweepGatherAndReduceScatter(EngineFixture& fixture) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange, MakeExchange(fixture));
  const int ranks = exchange->ranks();
  const int rank = exchange->rank();
  for (const int dim : {0, 1, -1}) {
    Shape shape = {1, 3, 4};
    WEFT_ASSIGN_OR_RETURN(const DimSplit even, DimSplit::OfPart(shape, dim, ranks, rank));
    for (const DimSplit& split : {even, DimSplit{even.dim, OddSizes(ranks, 1)}}) {
      SCOPED_TRACE(split.ToString());
      const Tensor whole = WholeNumbers(split.WholeShape(shape), 5);
      const TensorView part = split.PartOf(whole.view(), rank);
      // A window of the whole is strided and outside node memory.
      WEFT_RETURN_IF_ERROR(ExpectResult(exchange->AllGather(whole.Window(part), split), whole.view()));
      // Rank r contributes r + 1 times the whole.
      const Tensor scaled = whole.Copy();
      const Tensor sum = whole.Copy();
      for (int64_t i = 0; i < whole.elements(); ++i) {
        scaled.As<float>()[i] *= static_cast<float>(rank + 1);
        sum.As<float>()[i] *= static_cast<float>(ranks * (ranks + 1)) / 2;
      }
      WEFT_RETURN_IF_ERROR(
          ExpectResult(exchange->ReduceScatter(scaled, split), split.PartOf(sum.view(), rank)));
    }
  }
  return absl::OkStatus();
}

absl::Status SweepSplitAndGather(EngineFixture& fixture) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange, MakeExchange(fixture));
  const int ranks = exchange->ranks();
  const int rank = exchange->rank();
  constexpr std::pair<GradientScale, bool> kScales[] = {
      {GradientScale::kNone, false}, {GradientScale::kUp, true}, {GradientScale::kDown, true}};
  for (const auto& [scale, scaled] : kScales) {
    const float up =
        scale == GradientScale::kUp ? static_cast<float>(ranks) : 1.0F / static_cast<float>(ranks);
    const float factor = scaled ? up : 1.0F;
    for (const bool odd : {false, true}) {
      Shape shape = {2, 2 * ranks + 1, 3};
      const DimSplit split{1, odd ? OddSizes(ranks, 2) : EvenSizes(shape[1], ranks)};
      shape[1] = split.length();
      const Tensor whole = WholeNumbers(shape, 9);
      const Tensor times = whole.Copy();
      for (int64_t i = 0; i < times.elements(); ++i) times.As<float>()[i] *= factor;
      const TensorView part = split.PartOf(whole.view(), rank);
      WEFT_RETURN_IF_ERROR(ExpectResult(exchange->Split(whole, split), part));
      WEFT_RETURN_IF_ERROR(
          ExpectResult(exchange->SplitBackward(whole.Window(part), split, scale), times.view()));
      WEFT_RETURN_IF_ERROR(ExpectResult(exchange->Gather(whole.Window(part), split), whole.view()));
      WEFT_RETURN_IF_ERROR(
          ExpectResult(exchange->GatherBackward(whole, split, scale), split.PartOf(times.view(), rank)));
    }
  }
  return absl::OkStatus();
}

absl::Status SweepPacks(EngineFixture& fixture) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange, MakeExchange(fixture));
  const int ranks = exchange->ranks();
  const int rank = exchange->rank();
  // Some documents are shorter than the number of ranks, one is empty.
  std::vector<std::vector<int64_t>> sizes(static_cast<size_t>(ranks));
  for (const int64_t length : {int64_t{2 * ranks + 1}, int64_t{1}, int64_t{0}, int64_t{ranks}}) {
    for (int other = 0; other < ranks; ++other) {
      sizes[static_cast<size_t>(other)].push_back(EvenSizes(length, ranks)[static_cast<size_t>(other)]);
    }
  }
  for (const int dim : {0, 1}) {
    WEFT_ASSIGN_OR_RETURN(const PackSplit pack, PackSplit::Make({2, 2, 3}, dim - 3, ranks, sizes));
    const DimSplit by_rank = pack.ByRank();
    const Tensor whole = WholeNumbers(by_rank.WholeShape({2, 2, 3}), 21);
    // This rank's tokens, document by document.
    const Tensor part = Tensor::Empty(DType::kF32, by_rank.PartShape(whole.shape(), rank));
    const Tensor doubled = whole.Copy();
    for (int64_t i = 0; i < doubled.elements(); ++i) doubled.As<float>()[i] *= static_cast<float>(ranks);
    int64_t at = 0;
    int64_t begin = 0;
    for (int document = 0; document < pack.documents(); ++document) {
      for (int other = 0; other < ranks; ++other) {
        const int64_t count = sizes[static_cast<size_t>(other)][static_cast<size_t>(document)];
        if (other == rank) {
          WEFT_RETURN_IF_ERROR(
              StridedCopy(whole.view().Slice(dim, begin, count), part.view().Slice(dim, at, count)));
          at += count;
        }
        begin += count;
      }
    }
    WEFT_RETURN_IF_ERROR(ExpectResult(exchange->SplitPack(whole, pack), part.view()));
    WEFT_RETURN_IF_ERROR(ExpectResult(exchange->GatherPack(part, pack), whole.view()));
    WEFT_RETURN_IF_ERROR(
        ExpectResult(exchange->SplitPackBackward(part, pack, GradientScale::kUp), doubled.view()));
    WEFT_RETURN_IF_ERROR(
        ExpectResult(exchange->GatherPackBackward(whole, pack, GradientScale::kNone), part.view()));
  }
  return absl::OkStatus();
}

absl::Status SweepPairs(EngineFixture& fixture) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange, MakeExchange(fixture));
  const auto of_rank = [](int rank) {
    return WholeNumbers({2, 1 + rank % 3, 3}, 40 + static_cast<uint64_t>(rank));
  };
  const int peer = exchange->ranks() - 1 - exchange->rank();
  const Tensor own = of_rank(exchange->rank());
  const Tensor theirs = of_rank(peer);
  WEFT_RETURN_IF_ERROR(ExpectResult(exchange->ExchangePairs(own, theirs.shape()), theirs.view()));
  // The exchange is its own inverse and adjoint.
  return ExpectResult(exchange->ExchangePairs(theirs, own.shape()), own.view());
}

}  // namespace weft::testing
