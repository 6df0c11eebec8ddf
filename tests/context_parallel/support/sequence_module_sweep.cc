#include "tests/context_parallel/support/sequence_module_sweep.h"

#include <cstring>
#include <memory>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/context_parallel/support/exchange_sweep.h"
#include "weft/context_parallel/sequence_modules.h"
#include "weft/context_parallel/sequence_parts.h"

namespace weft::testing {
namespace {

void ExpectSame(const Tensor& actual, const Tensor& expected) {
  ASSERT_EQ(actual.shape(), expected.shape());
  ASSERT_TRUE(actual.view().IsContiguous());
  EXPECT_EQ(std::memcmp(actual.view().data, expected.view().data, actual.bytes()), 0);
}

Tensor Times(const Tensor& tensor, float factor) {
  Tensor product = tensor.Copy();
  for (int64_t i = 0; i < product.elements(); ++i) product.As<float>()[i] *= factor;
  return product;
}

float FactorOf(GradientScale scale, int ranks) {
  if (scale == GradientScale::kNone) return 1.0F;
  return scale == GradientScale::kUp ? static_cast<float>(ranks) : 1.0F / static_cast<float>(ranks);
}

absl::Status CheckLayout(SequenceExchange& exchange, const SequenceLayout& layout,
                         const SequenceModuleOptions& options) {
  Shape shape = {2, 3, 2};
  shape[static_cast<size_t>(options.seq_dim < 0 ? options.seq_dim + 3 : options.seq_dim)] = layout.tokens();
  const Tensor whole = WholeNumbers(shape, 1);
  const Tensor other = WholeNumbers(shape, 2);
  const auto part_of = [&](const Tensor& tensor) {
    return ExtractPart(tensor.view(), options.seq_dim, layout, exchange.rank());
  };
  WEFT_ASSIGN_OR_RETURN(const Tensor part, part_of(whole));
  WEFT_ASSIGN_OR_RETURN(const Tensor other_part, part_of(other));
  const float factor = FactorOf(options.scale, exchange.ranks());

  SplitSequence split("split", exchange, options);
  GatherSequence gather("gather", exchange, options);
  split.SetLayout(std::make_shared<SequenceLayout>(layout));
  gather.SetLayout(std::make_shared<SequenceLayout>(layout));
  Invocation invocation;
  WEFT_ASSIGN_OR_RETURN(const Tensors parts, split.Forward(invocation, {whole, Tensor(), other}));
  ExpectSame(parts[0], part);
  EXPECT_FALSE(parts[1].defined());
  ExpectSame(parts[2], other_part);
  WEFT_ASSIGN_OR_RETURN(const Tensors wholes, gather.Forward(invocation, {parts[0], parts[2]}));
  ExpectSame(wholes[0], whole);
  ExpectSame(wholes[1], other);
  WEFT_ASSIGN_OR_RETURN(const Tensors part_gradients, gather.Backward(invocation, {other, Tensor()}));
  ExpectSame(part_gradients[0], Times(other_part, factor));
  EXPECT_FALSE(part_gradients[1].defined());
  WEFT_ASSIGN_OR_RETURN(const Tensors gradients, split.Backward(invocation, {other_part, Tensor(), part}));
  ExpectSame(gradients[0], Times(other, factor));
  EXPECT_FALSE(gradients[1].defined());
  ExpectSame(gradients[2], Times(whole, factor));
  return absl::OkStatus();
}

}  // namespace

absl::Status SweepSequenceModules(EngineFixture& fixture) {
  WEFT_ASSIGN_OR_RETURN(
      const std::unique_ptr<SequenceExchange> exchange,
      SequenceExchange::Create(*fixture.engine, *fixture.pool, fixture.engine->group(fixture.lane)));
  const int ranks = exchange->ranks();
  const GradientScale scales[] = {GradientScale::kNone, GradientScale::kUp, GradientScale::kDown};
  size_t step = 0;
  for (const SequenceOrder order : {SequenceOrder::kContiguous, SequenceOrder::kHeadTail}) {
    for (const std::vector<int64_t>& documents :
         {std::vector<int64_t>{int64_t{4} * ranks}, {int64_t{4} * ranks + 3}, {1}, {2, 9, 1, 14}}) {
      WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout,
                            SequenceLayout::Create(documents, {.outer = ranks, .order = order}));
      for (const int dim : {0, 1, 2, -2}) {
        const SequenceModuleOptions options{.seq_dim = dim, .scale = scales[step++ % 3]};
        SCOPED_TRACE(absl::StrCat(layout.tokens(), " tokens along dim ", dim));
        WEFT_RETURN_IF_ERROR(CheckLayout(*exchange, layout, options));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::testing
