#include "weft/context_parallel/exchange_hooks.h"

#include <cstring>
#include <utility>

#include <gtest/gtest.h>

#include "tests/context_parallel/support/slot_model.h"
#include "tests/support/thread_ranks.h"
#include "weft/context_parallel/sequence_gather.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

class ExchangeHooksRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ExchangeHooksRanks, ::testing::Values(1, 2, 3, 4, 7));

TEST_P(ExchangeHooksRanks, GiveConsumersTheTensorsOfAllRanks) {
  RunRanksOnEveryNodeMap(GetParam(), [](Bootstrap& bootstrap) -> absl::Status {
    for (const int consumers : {1, 2, 3}) {
      for (const bool has_source : {false, true}) {
        WEFT_RETURN_IF_ERROR(CheckSlotAgainstOneRank(bootstrap, {.consumers = consumers}, has_source));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(ExchangeHooksRanks, ExchangeARangeOfFeatures) {
  RunRanks(NodeMap::OneNode(GetParam()), [](Bootstrap& bootstrap) -> absl::Status {
    for (const bool has_source : {false, true}) {
      WEFT_RETURN_IF_ERROR(
          CheckSlotAgainstOneRank(bootstrap, {.consumers = 2, .is_fused = true}, has_source));
    }
    return absl::OkStatus();
  });
}

TEST_P(ExchangeHooksRanks, SeparateTheCallsOfOneInvocation) {
  RunRanks(NodeMap::OneNode(GetParam()), [](Bootstrap& bootstrap) -> absl::Status {
    for (const bool has_source : {false, true}) {
      WEFT_RETURN_IF_ERROR(CheckSlotAgainstOneRank(bootstrap, {.consumers = 2}, has_source, /*calls=*/3));
    }
    return absl::OkStatus();
  });
}

TEST(ExchangeHooks, GiveTheSameBitsWhereverTheExchangeIsLaunched) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const bool is_fused : {false, true}) {
        for (const int consumers : {1, 2, 3}) {
          const SlotBlockOptions options{.consumers = consumers, .is_fused = is_fused, .dtype = dtype};
          WEFT_ASSIGN_OR_RETURN(const PassResult early, SlotPassWith(bootstrap, options, true));
          WEFT_ASSIGN_OR_RETURN(const PassResult in_place, SlotPassWith(bootstrap, options, false));
          EXPECT_TRUE(SameBits(early, in_place)) << consumers << Name(dtype);
        }
      }
    }
    return absl::OkStatus();
  });
}

// One exchange and one exchange back, whatever the number of consumers. Only the other ranks' bytes are
// received.
TEST(ExchangeHooks, ServeAllConsumersByOneExchange) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    const SlotPair pair;
    const SequenceLayout layout = SlotLayout(3);
    const int64_t own = layout.TokensOf(bootstrap.rank());
    for (const int consumers : {1, 2, 3}) {
      for (const bool has_source : {false, true}) {
        WEFT_ASSIGN_OR_RETURN(const auto model,
                              SlotModel::Make(bootstrap, {.consumers = consumers}, has_source));
        WEFT_RETURN_IF_ERROR(model->Pass(layout, pair.x, pair.dy).status());
        EXPECT_EQ(model->hooks().counters().launched_by_sources, has_source ? 1 : 0);
        EXPECT_EQ(model->hooks().counters().launched_by_consumers, has_source ? 0 : 1);
        EXPECT_EQ(model->hooks().counters().returned, 1);
        const int64_t token_bytes = int64_t{2} * 6 * 4;  // Two rows of the batch.
        EXPECT_EQ(model->fixture().engine->counters().context_bytes,
                  (kTokens - own) * token_bytes + 2 * own * token_bytes);
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      }
    }
    return absl::OkStatus();
  });
}

TEST(ExchangeHooks, CopyNothingInNodeMemory) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    for (const int64_t batch : {1, 2}) {
      for (const bool has_source : {false, true}) {
        WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, {}, has_source));
        const Tensor x = SomeTensor(batch, kTokens, 6, 1);
        WEFT_RETURN_IF_ERROR(model->Pass(SlotLayout(3), x, x).status());
        EXPECT_EQ(model->fixture().engine->counters().copied_bytes, 0);
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      }
    }
    return absl::OkStatus();
  });
}

TEST(ExchangeHooks, SeparateMicrobatchesInFlight) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SlotModel::Make(bootstrap, {.consumers = 2}, true));
    const SequenceLayout layout = SlotLayout(3);
    const auto part = [&](uint64_t salt) {
      return PartOf(SomeTensor(2, kTokens, 6, salt), layout, bootstrap.rank());
    };
    return CheckMicrobatchesInFlight(split->model(), layout.Parts(bootstrap.rank()), part);
  });
}

// A consumer whose tensor is not the one that the source made exchanges it itself.
TEST(ExchangeHooks, ExchangeTensorsThatTheSourceDidNotMake) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    const SlotBlockOptions options{.consumers = 2};
    WEFT_ASSIGN_OR_RETURN(const PassResult expected, SlotPassWith(bootstrap, options, false));
    WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, options, true));
    model->block().SetBefore([](Invocation&, size_t consumer, Tensors& inputs) {
      if (consumer == 1) inputs[1] = inputs[1].Copy();
      return absl::OkStatus();
    });
    const SlotPair pair;
    WEFT_ASSIGN_OR_RETURN(const PassResult result, model->Pass(SlotLayout(2), pair.x, pair.dy));
    EXPECT_EQ(model->hooks().counters().launched_by_sources, 1);
    EXPECT_EQ(model->hooks().counters().launched_by_consumers, 1);
    EXPECT_EQ(model->hooks().counters().returned, 2);
    WEFT_RETURN_IF_ERROR(CheckClose("outputs", result.y, expected.y));
    return CheckClose("input gradients", result.dx, expected.dx);
  });
}

// Compares a pass that leaves out the backward of a consumer with that of one rank.
absl::Status CheckWithoutBackward(Bootstrap& bootstrap, SlotModel& model, size_t left_out) {
  const SlotPair pair;
  BlockModel<SlotBlock> whole(model.block().options());
  whole.block().LeaveOutBackward(left_out);
  WEFT_ASSIGN_OR_RETURN(const PassResult expected, whole.Pass(nullptr, pair.x, pair.dy));
  model.block().LeaveOutBackward(left_out);
  const SequenceLayout layout = SlotLayout(bootstrap.size());
  WEFT_ASSIGN_OR_RETURN(const PassResult result, model.Pass(layout, pair.x, pair.dy));
  return CheckPass(bootstrap, absl::StrCat("without consumer ", left_out), layout, result, expected);
}

// Without a source, the first consumer returns the sum.
TEST(ExchangeHooks, ExchangeTheSumOfTheConsumersThatRanBackward) {
  const struct {
    bool has_source;
    int consumers;
    size_t left_out;
    int64_t returned;
  } cases[] = {{true, 2, 0, 1},  {true, 2, 1, 1},  {true, 3, 1, 1},  {true, 1, 0, 0},
               {false, 2, 1, 1}, {false, 3, 1, 1}, {false, 3, 2, 1}, {false, 1, 0, 0}};
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    for (const auto& [has_source, consumers, left_out, returned] : cases) {
      WEFT_ASSIGN_OR_RETURN(const auto model,
                            SlotModel::Make(bootstrap, {.consumers = consumers}, has_source));
      WEFT_RETURN_IF_ERROR(CheckWithoutBackward(bootstrap, *model, left_out));
      EXPECT_EQ(model->hooks().counters().returned, returned);
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    }
    return absl::OkStatus();
  });
}

TEST(ExchangeHooks, ReturnTheSumOfATensorThatTheSourceDidNotMake) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, {.consumers = 3}, true));
    Tensor copy;  // Taken by the last two consumers.
    model->block().SetBefore([&](Invocation&, size_t consumer, Tensors& inputs) {
      if (consumer == 1) copy = inputs[1].Copy();
      if (consumer > 0) inputs[1] = copy;
      return absl::OkStatus();
    });
    WEFT_RETURN_IF_ERROR(CheckWithoutBackward(bootstrap, *model, 2));
    EXPECT_EQ(model->hooks().counters().returned, 2);
    return BootstrapBarrier(bootstrap);
  });
}

// All ranks compute alike on the gathered tensor, so that the exchange doubles the gradient.
TEST(ExchangeHooks, ReturnTheSumOfTwoInputsOfOneConsumer) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, {}));
    SquareSum& consumer = *model->block().consumers()[0];
    const SlotPair pair;
    const Tensor keys = pair.x.Reshape({2, kTokens, 3, 2});
    const Tensor dout = pair.dy.Reshape(keys.shape());
    Invocation alone;
    WEFT_RETURN_IF_ERROR(consumer.Forward(alone, {keys, keys}).status());
    WEFT_ASSIGN_OR_RETURN(const Tensors apart, consumer.Backward(alone, {dout}));
    const Tensor sum = Tensor::Zeros(DType::kF32, pair.x.shape());
    for (int64_t i = 0; i < sum.elements(); ++i) {
      sum.As<float>()[i] = 2 * (apart[0].As<float>()[i] + apart[1].As<float>()[i]);
    }
    WEFT_RETURN_IF_ERROR(
        model->hooks().AddSlot({.name = "keys", .exchange = SequenceGather(model->exchange(), "keys")}));
    for (const int input : {0, 1}) WEFT_RETURN_IF_ERROR(model->hooks().AddConsumer("keys", consumer, input));
    WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout, SequenceLayout::Contiguous(kTokens, 2));
    const Tensor part = PartOf(pair.x, layout, bootstrap.rank());
    const Tensor own = part.Reshape({2, part.dim(1), 3, 2});
    Invocation invocation;
    invocation.SetSequence(layout.Parts(bootstrap.rank()));
    WEFT_RETURN_IF_ERROR(consumer.Forward(invocation, {own, own}).status());
    WEFT_ASSIGN_OR_RETURN(const Tensors given, consumer.Backward(invocation, {dout}));
    EXPECT_EQ(model->hooks().counters().returned, 1);
    WEFT_RETURN_IF_ERROR(
        CheckClose("gradient", given[0].Reshape(part.shape()), PartOf(sum, layout, bootstrap.rank())));
    return BootstrapBarrier(bootstrap);
  });
}

// Without heads, a consumer takes the only output of the source in its own shape, here [batch, tokens, dim].
// All ranks compute alike on the gathered tensor, so that each of them gives the whole gradient.
TEST(ExchangeHooks, TakeAnOutputAsItIs) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, {}));
    const Initializer weights = {Initializer::Kind::kNormal, 0.0F, 0.5F};
    Linear source("source", 6, 5, weights);
    Linear consumer("consumer", 5, 6, weights);
    const MaterializedParameters source_memory(source, 7, DType::kF32, DType::kF32);
    const MaterializedParameters consumer_memory(consumer, 7, DType::kF32, DType::kF32);
    const auto pass = [&](Invocation& invocation, const Tensor& x,
                          const Tensor& dy) -> absl::StatusOr<Tensors> {
      WEFT_ASSIGN_OR_RETURN(const Tensors hidden, source.Forward(invocation, {x}));
      WEFT_ASSIGN_OR_RETURN(const Tensors y, consumer.Forward(invocation, hidden));
      WEFT_ASSIGN_OR_RETURN(const Tensors gradient, consumer.Backward(invocation, {dy}));
      WEFT_ASSIGN_OR_RETURN(const Tensors dx, source.Backward(invocation, gradient));
      return Tensors{y[0], dx[0]};
    };
    const SlotPair pair;
    Invocation whole;
    WEFT_ASSIGN_OR_RETURN(const Tensors expected, pass(whole, pair.x, pair.dy));
    ExchangeHooks& hooks = model->hooks();
    WEFT_RETURN_IF_ERROR(hooks.AddSlot(
        {.name = "hidden", .source = {&source}, .exchange = SequenceGather(model->exchange(), "hidden")}));
    WEFT_RETURN_IF_ERROR(hooks.AddConsumer("hidden", consumer, 0));
    WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout, SequenceLayout::Contiguous(kTokens, 3));
    Invocation invocation;
    invocation.SetSequence(layout.Parts(bootstrap.rank()));
    WEFT_ASSIGN_OR_RETURN(const Tensors result,
                          pass(invocation, PartOf(pair.x, layout, bootstrap.rank()), pair.dy));
    EXPECT_EQ(hooks.counters().launched_by_sources, 1);
    WEFT_RETURN_IF_ERROR(CheckClose("outputs", result[0], expected[0]));
    const Tensor tripled = PartOf(expected[1], layout, bootstrap.rank());
    for (int64_t i = 0; i < tripled.elements(); ++i) tripled.As<float>()[i] *= 3;
    WEFT_RETURN_IF_ERROR(CheckClose("input gradients", result[1], tripled));
    model->RemoveHooks();  // Before the modules.
    return BootstrapBarrier(bootstrap);
  });
}

// Returns the tensor that a hook gave to the only consumer.
absl::StatusOr<Tensor> TakenBy(SlotModel& model, const Tensor& keys,
                               std::shared_ptr<const SequenceParts> parts) {
  Tensor taken;
  SquareSum& consumer = *model.block().consumers()[0];
  const Module::HookId hook =
      consumer.AddForwardPreHook([&](Module&, Invocation&, Tensors& inputs) -> absl::Status {
        taken = inputs[1];
        return absl::CancelledError("seen");
      });
  Invocation invocation;
  invocation.SetSequence(std::move(parts));
  EXPECT_EQ(consumer.Forward(invocation, {keys, keys}).status().code(), absl::StatusCode::kCancelled);
  consumer.RemoveHook(hook);
  return taken;
}

TEST(ExchangeHooks, LeaveTensorsWithoutGradientsUnchanged) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, {}, false));
    const auto parts = SlotLayout(2).Parts(bootstrap.rank());
    const Tensor integers = Tensor::Zeros(DType::kI32, {2, parts->ranks(), 3, 2});
    WEFT_ASSIGN_OR_RETURN(const Tensor same, TakenBy(*model, integers, parts));
    EXPECT_EQ(same.view().data, integers.view().data);
    WEFT_ASSIGN_OR_RETURN(const Tensor undefined, TakenBy(*model, Tensor(), parts));
    EXPECT_FALSE(undefined.defined());
    EXPECT_EQ(model->hooks().counters().launched_by_consumers, 0);
    return absl::OkStatus();
  });
}

TEST(ExchangeHooks, LeaveTensorsOfOneRankUnchanged) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    const SlotPair pair;
    const SlotBlockOptions options{.consumers = 2};
    WEFT_ASSIGN_OR_RETURN(const PassResult expected,
                          BlockModel<SlotBlock>(options).Pass(nullptr, pair.x, pair.dy));
    for (const bool has_source : {false, true}) {
      WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, options, has_source));
      WEFT_ASSIGN_OR_RETURN(const PassResult result, model->Pass(SlotLayout(1), pair.x, pair.dy));
      EXPECT_TRUE(SameBits(result, expected));
      EXPECT_EQ(model->hooks().counters().launched_by_sources, 0);
      EXPECT_EQ(model->hooks().counters().launched_by_consumers, 0);
      EXPECT_EQ(model->hooks().counters().returned, 0);
    }
    return absl::OkStatus();
  });
}

TEST(ExchangeHooks, FindInputsByPositionAndByName) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const PassResult by_name, SlotPassWith(bootstrap, {}, true));
    WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, {}));
    ExchangeHooks::Slot slot = model->block().KeySlot();
    slot.exchange = SequenceGather(model->exchange(), "keys");
    WEFT_RETURN_IF_ERROR(model->hooks().AddSlot(std::move(slot)));
    WEFT_RETURN_IF_ERROR(model->hooks().AddConsumer("keys", *model->block().consumers()[0], 1));
    const SlotPair pair;
    WEFT_ASSIGN_OR_RETURN(const PassResult by_position, model->Pass(SlotLayout(2), pair.x, pair.dy));
    EXPECT_TRUE(SameBits(by_name, by_position));
    return absl::OkStatus();
  });
}

TEST(ExchangeHooks, HoldNoMemoryAfterAPassWithoutABackward) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, {.consumers = 2}, true));
    const SequenceLayout layout = SlotLayout(2);
    {
      Invocation invocation(/*gradients=*/false);
      invocation.SetSequence(layout.Parts(bootstrap.rank()));
      const Tensor x = PartOf(SlotPair().x, layout, bootstrap.rank());
      WEFT_RETURN_IF_ERROR(model->model().Forward(invocation, x).status());
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    WEFT_RETURN_IF_ERROR(CheckEngineWorks(model->fixture()));
    EXPECT_EQ(model->fixture().pool->in_use_bytes(), 0);
    return absl::OkStatus();
  });
}

// An exchange with no peer, which keeps the gradients that it is given.
class KeptGradients final : public SlotExchange {
 public:
  absl::StatusOr<PendingTensor> Launch(Invocation&, const Tensor& local) override {
    return PendingTensor(local.Copy());
  }
  absl::StatusOr<PendingTensor> Return(Invocation&, const Tensor& gradient, DType dtype) override {
    kept.push_back(gradient);
    Tensor local = Tensor::Empty(dtype, gradient.shape());
    WEFT_RETURN_IF_ERROR(StridedCopy(gradient.view(), local.view()));
    return PendingTensor(std::move(local));
  }

  Tensors kept;
};

TEST(ExchangeHooks, AddTheGradientsOfConsumersInF32) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    const SlotPair pair;
    for (const int consumers : {1, 3}) {
      WEFT_ASSIGN_OR_RETURN(const auto model,
                            SlotModel::Make(bootstrap, {.consumers = consumers, .dtype = DType::kBF16}));
      Tensor sum;
      for (SquareSum* consumer : model->block().consumers()) {  // Runs before the hook of the exchange.
        consumer->AddBackwardPostHook([&](Module&, Invocation&, Tensors& gradients) -> absl::Status {
          const Tensor wide = Tensor::Empty(DType::kF32, gradients[1].shape());
          WEFT_RETURN_IF_ERROR(StridedCopy(gradients[1].view(), wide.view()));
          if (!sum.defined()) sum = Tensor::Zeros(DType::kF32, wide.shape());
          for (int64_t i = 0; i < sum.elements(); ++i) sum.As<float>()[i] += wide.As<float>()[i];
          return absl::OkStatus();
        });
      }
      const auto exchange = std::make_shared<KeptGradients>();
      ExchangeHooks::Slot slot = model->block().KeySlot();
      slot.exchange = exchange;
      WEFT_RETURN_IF_ERROR(model->AddKeySlot(std::move(slot)));
      WEFT_RETURN_IF_ERROR(model->Pass(SlotLayout(1), pair.x, pair.dy).status());
      EXPECT_EQ(exchange->kept.size(), 1);
      const Tensor& kept = exchange->kept[0];
      EXPECT_EQ(kept.dtype(), consumers == 1 ? DType::kBF16 : DType::kF32);
      const Tensor wide = Tensor::Empty(DType::kF32, kept.shape());
      WEFT_RETURN_IF_ERROR(StridedCopy(kept.view(), wide.view()));
      EXPECT_EQ(std::memcmp(wide.view().data, sum.view().data, sum.bytes()), 0);
    }
    return absl::OkStatus();
  });
}

TEST(ExchangeHooks, RemoveThemselvesWhenDestroyed) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    const SlotPair pair;
    WEFT_ASSIGN_OR_RETURN(const PassResult expected,
                          BlockModel<SlotBlock>({}).Pass(nullptr, pair.x, pair.dy));
    WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, {}, true));
    model->RemoveHooks();
    WEFT_ASSIGN_OR_RETURN(const PassResult result, model->model().Pass(nullptr, pair.x, pair.dy));
    EXPECT_TRUE(SameBits(result, expected));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
