// Gradients that the backward of a source is given, to which its hook adds that of the exchanged output.
#include <cstring>
#include <utility>

#include <absl/functional/function_ref.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/context_parallel/support/slot_model.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs one pass over two ranks, in which `backward` is given the projection, the source of the keys, and the
// gradients of its outputs: those of q, and negative zeros for the keys. Returns the gradient of x.
using SourceBackward = absl::FunctionRef<absl::StatusOr<Tensors>(Module& source, Invocation&, Tensors)>;
absl::StatusOr<Tensor> PassWith(SlotModel& model, int rank, SourceBackward backward) {
  const SequenceLayout layout = SlotLayout(2);
  const SlotPair pair;
  const Tensor x = PartOf(pair.x, layout, rank);
  const Shape heads = {x.dim(0), x.dim(1), 3, 2};
  Linear& projection = model.block().projection();
  SquareSum& consumer = *model.block().consumers()[0];
  Invocation invocation;
  invocation.SetSequence(layout.Parts(rank));
  WEFT_ASSIGN_OR_RETURN(const Tensors projected, projection.Forward(invocation, {x}));
  WEFT_RETURN_IF_ERROR(
      consumer.Forward(invocation, {projected[0].Reshape(heads), projected[1].Reshape(heads)}).status());
  const Tensor dout = PartOf(pair.dy, layout, rank).Reshape(heads);
  WEFT_ASSIGN_OR_RETURN(const Tensors given, consumer.Backward(invocation, {dout}));
  const Shape outputs = {x.dim(0), x.dim(1), 6};
  WEFT_ASSIGN_OR_RETURN(const Tensors dx, backward(projection, invocation,
                                                   {given[0].Reshape(outputs), given[1].Reshape(outputs)}));
  return dx[0];
}

// Runs a pass on each of two ranks with `backward` and with `expected`, and compares the bits.
void ExpectSameBits(SourceBackward backward, SourceBackward expected) {
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, {}, true));
    WEFT_ASSIGN_OR_RETURN(const Tensor dx, PassWith(*model, bootstrap.rank(), backward));
    WEFT_ASSIGN_OR_RETURN(const Tensor same, PassWith(*model, bootstrap.rank(), expected));
    EXPECT_EQ(dx.shape(), same.shape());
    EXPECT_EQ(std::memcmp(dx.view().data, same.view().data, same.bytes()), 0);
    return BootstrapBarrier(bootstrap);
  });
}

absl::StatusOr<Tensors> AsGiven(Module& source, Invocation& invocation, Tensors gradients) {
  return source.Backward(invocation, std::move(gradients));
}

TEST(ExchangeHooksGradients, MayBeMissingForTheLastOutputs) {
  ExpectSameBits(
      [](Module& source, Invocation& invocation, Tensors gradients) {
        gradients.pop_back();
        return source.Backward(invocation, std::move(gradients));
      },
      AsGiven);
}

// Another gradient of the same shape, as a strided part of a tensor.
Tensor StridedLike(const Tensor& gradient) {
  const Tensor wide = SomeTensor(gradient.dim(0), gradient.dim(1), 2 * gradient.dim(2), 3);
  return wide.Window(wide.view().Slice(2, gradient.dim(2), gradient.dim(2)));
}

TEST(ExchangeHooksGradients, AddToAStridedGradient) {
  ExpectSameBits(
      [](Module& source, Invocation& invocation, const Tensors& gradients) {
        return source.Backward(invocation, {gradients[0], StridedLike(gradients[1])});
      },
      [](Module& source, Invocation& invocation, const Tensors& gradients) {
        return source.Backward(invocation, {gradients[0], StridedLike(gradients[1]).Copy()});
      });
}

// The refused backward changes nothing: the next one has the gradient of the exchange.
TEST(ExchangeHooksGradients, HaveTheShapesOfTheOutputs) {
  ExpectSameBits(
      [](Module& source, Invocation& invocation, Tensors gradients) {
        const Tensor shorter = SomeTensor(2, 4, 6, 3);
        EXPECT_THAT(source.Backward(invocation, {gradients[0], shorter}).status(),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             AllOf(HasSubstr("block.layer.projection"), HasSubstr("output 1 is [2, 4, 6]"))));
        return source.Backward(invocation, std::move(gradients));
      },
      AsGiven);
}

// The source refuses the gradient of q after the hook has added that of the keys to its gradient.
TEST(ExchangeHooksGradients, AreNotLostInARepeatedBackward) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, {}, true));
    const auto repeated = [](Module& source, Invocation& invocation, const Tensors& gradients) {
      EXPECT_THAT(source.Backward(invocation, {StridedLike(gradients[0]), gradients[1]}).status(),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("output 0")));
      return source.Backward(invocation, gradients);
    };
    EXPECT_THAT(PassWith(*model, bootstrap.rank(), repeated).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("block.layer.projection"), HasSubstr("repeat the pass"))));
    return BootstrapBarrier(bootstrap);
  });
}

}  // namespace
}  // namespace weft::testing
