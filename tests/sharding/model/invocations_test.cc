// Passes besides those of a step: evaluations, passes that are abandoned, several in flight.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"

namespace weft::testing {
namespace {

TEST(ShardedModel, TrainsTheSameWithOtherForwardsBetweenSteps) {
  const auto train = [](bool other_forwards, bool reshard) {
    std::vector<float> weights;
    ShardingPolicy policy;
    policy.reshard_after_forward = reshard;
    WithToyModel(2, policy, [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
      for (int step = 0; step < 3; ++step) {
        if (other_forwards) {
          Invocation evaluation(/*gradients=*/false);
          WEFT_RETURN_IF_ERROR(net.Forward(evaluation, {ToyInputs(0, 3, 6)}).status());
          Invocation abandoned;  // Saves activations, but no backward follows.
          WEFT_RETURN_IF_ERROR(net.Forward(abandoned, {ToyInputs(7, 3, 6)}).status());
        }
        WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank, step));
        WEFT_RETURN_IF_ERROR(ToyUpdate(model, 1.0, nullptr));
      }
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> result, ToyWeights(model));
      if (rank == 0) weights = result;
      return absl::OkStatus();
    });
    return weights;
  };
  const std::vector<float> expected = train(/*other_forwards=*/false, /*reshard=*/true);
  for (const bool reshard : {true, false}) EXPECT_EQ(train(/*other_forwards=*/true, reshard), expected);
}

TEST(ShardedModel, SupportsSeveralInvocationsInFlight) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int) -> absl::Status {
    const auto gradients = [&](bool interleaved) -> absl::StatusOr<std::vector<float>> {
      Invocation one;
      Invocation two;
      const auto backward = [&net](Invocation& invocation, const Tensors& outputs) {
        return net.Backward(invocation, {ToyLossGradient(outputs[0], 1.0F)}).status();
      };
      model.SetRequiresGradientSync(false);
      WEFT_ASSIGN_OR_RETURN(const Tensors first, net.Forward(one, {ToyInputs(0, 3, 6)}));
      if (!interleaved) WEFT_RETURN_IF_ERROR(backward(one, first));
      WEFT_ASSIGN_OR_RETURN(const Tensors second, net.Forward(two, {ToyInputs(3, 3, 6)}));
      if (interleaved) WEFT_RETURN_IF_ERROR(backward(one, first));
      model.SetRequiresGradientSync(true);
      WEFT_RETURN_IF_ERROR(backward(two, second));
      std::vector<float> values;
      for (const ShardView& shard : model.Shards()) {
        values.insert(values.end(), shard.grad, shard.grad + shard.elements());
      }
      model.ZeroGradients();
      return values;
    };
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> sequential, gradients(/*interleaved=*/false));
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> interleaved, gradients(/*interleaved=*/true));
    EXPECT_EQ(sequential, interleaved);
    return absl::OkStatus();
  });
}

// The address of an invocation is its id. What an abandoned pass has called must not count in a later one.
TEST(ShardedModel, ReducesAsEarlyAfterAnAbandonedInvocationAtTheSameAddress) {
  WithToyModel(2, PrivateImages(), [](ToyNet& net, ShardedModel& model, int) -> absl::Status {
    using Event = std::pair<ScheduleEvent, std::string>;
    std::vector<Event> events;
    model.SetScheduleObserver(
        [&](ScheduleEvent event, const std::string& group) { events.emplace_back(event, group); });
    std::optional<Invocation> invocation;
    // The events of the backward that follows the last of some forwards.
    const auto backward_after = [&](int forwards) -> absl::StatusOr<std::vector<Event>> {
      Tensors outputs;
      for (int forward = 0; forward < forwards; ++forward) {
        invocation.emplace();
        WEFT_ASSIGN_OR_RETURN(outputs, net.Forward(*invocation, {ToyInputs(0, 3, 6)}));
      }
      events.clear();
      WEFT_RETURN_IF_ERROR(net.Backward(*invocation, {ToyLossGradient(outputs[0], 1.0F)}).status());
      model.ZeroGradients();
      return events;
    };
    WEFT_RETURN_IF_ERROR(backward_after(1).status());  // Records the order of groups.
    WEFT_ASSIGN_OR_RETURN(const std::vector<Event> expected, backward_after(1));
    WEFT_ASSIGN_OR_RETURN(const std::vector<Event> after_abandoned, backward_after(2));
    EXPECT_EQ(after_abandoned, expected);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
