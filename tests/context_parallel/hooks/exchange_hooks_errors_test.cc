// Error messages of ExchangeHooks.
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/context_parallel/support/slot_model.h"
#include "tests/support/thread_ranks.h"
#include "weft/context_parallel/sequence_gather.h"
#include "weft/nn/attention.h"
#include "weft/nn/rope.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A model over two ranks, with the layout of its passes.
struct TwoRanks {
  std::unique_ptr<SlotModel> model;
  SequenceLayout layout;
  SlotPair pair = {};

  static absl::StatusOr<TwoRanks> Make(Bootstrap& bootstrap, const SlotBlockOptions& options = {}) {
    WEFT_ASSIGN_OR_RETURN(auto model, SlotModel::Make(bootstrap, options));
    WEFT_ASSIGN_OR_RETURN(SequenceLayout layout, SequenceLayout::Contiguous(kTokens, 2));
    return TwoRanks{std::move(model), std::move(layout)};
  }
  absl::Status Pass() { return model->Pass(layout, pair.x, pair.dy).status(); }
};

TEST(ExchangeHooksErrors, RefuseSlotsAndConsumersThatDoNotFit) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(TwoRanks two, TwoRanks::Make(bootstrap));
    ExchangeHooks& hooks = two.model->hooks();
    const auto refused = [](const absl::Status& status, const auto& text) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, text));
    };
    ExchangeHooks::Slot slot = two.model->block().KeySlot();
    refused(hooks.AddSlot(slot), AllOf(HasSubstr("'keys'"), HasSubstr("no exchange")));
    slot.exchange = SequenceGather(two.model->exchange(), "keys");
    const auto refused_slot = [&](auto change, const char* text) {
      ExchangeHooks::Slot changed = slot;
      change(changed);
      refused(hooks.AddSlot(changed), HasSubstr(text));
    };
    refused_slot([](ExchangeHooks::Slot& bad) { bad.heads = -1; }, "heads below 0");
    refused_slot([](ExchangeHooks::Slot& bad) { bad.source.output = -1; }, "output below 0");
    refused_slot(
        [](ExchangeHooks::Slot& bad) {
          bad.source.features = ExchangeSource::Features{0, 0};
        },
        "empty range");
    WEFT_RETURN_IF_ERROR(hooks.AddSlot(slot));
    refused(hooks.AddSlot(slot), HasSubstr("a slot 'keys' already"));

    SquareSum& consumer = *two.model->block().consumers()[0];
    refused(hooks.AddConsumer("values", consumer, 1),
            AllOf(HasSubstr("no slot 'values'"), HasSubstr("block.consumer.0")));
    refused(hooks.AddConsumer("keys", consumer, -1), HasSubstr("input -1"));
    refused(hooks.AddConsumer("keys", consumer, "v"),
            AllOf(HasSubstr("no input 'v'"), HasSubstr("name one of q, keys")));
    Attention attention("attention");
    refused(hooks.AddConsumer("keys", attention, "value"), HasSubstr("name one of q, k, v"));
    refused(hooks.AddConsumer("keys", two.model->block(), "x"), HasSubstr("its inputs have no names"));
    WEFT_RETURN_IF_ERROR(hooks.AddConsumer("keys", consumer, "keys"));
    refused(hooks.AddConsumer("keys", consumer, 1), HasSubstr("that of slot 'keys' already"));
    return absl::OkStatus();
  });
}

TEST(ExchangeHooksErrors, NameInputsAndOutputsThatAPassDoesNotHave) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    const auto pass_with = [&](auto change, int input) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(TwoRanks two, TwoRanks::Make(bootstrap));
      ExchangeHooks::Slot slot = two.model->block().KeySlot();
      slot.exchange = SequenceGather(two.model->exchange(), "keys");
      change(slot);
      WEFT_RETURN_IF_ERROR(two.model->hooks().AddSlot(std::move(slot)));
      WEFT_RETURN_IF_ERROR(two.model->hooks().AddConsumer("keys", *two.model->block().consumers()[0], input));
      const absl::Status status = two.Pass();
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      return status;
    };
    EXPECT_THAT(pass_with([](ExchangeHooks::Slot&) {}, 2),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("given 2 inputs"), HasSubstr("'keys' is for input 2"))));
    EXPECT_THAT(pass_with([](ExchangeHooks::Slot& slot) { slot.source.output = 2; }, 1),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("but output 2 is named")));
    EXPECT_THAT(pass_with([](ExchangeHooks::Slot& slot) { slot.heads = 4; }, 1),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not hold 4 heads")));
    EXPECT_THAT(pass_with([](ExchangeHooks::Slot& slot) { slot.source.output = 0; }, 1),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("took another tensor")));
    return absl::OkStatus();
  });
}

TEST(ExchangeHooksErrors, NameTheSequenceThatAPassLacks) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    const auto pass_over = [&](std::shared_ptr<const SequenceParts> parts) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(TwoRanks two, TwoRanks::Make(bootstrap));
      WEFT_RETURN_IF_ERROR(two.model->AddKeySlot(two.model->block().KeySlot()));
      const Tensor x = PartOf(two.pair.x, two.layout, bootstrap.rank());
      const absl::Status status = two.model->model().Pass(std::move(parts), x, x).status();
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      return status;
    };
    EXPECT_THAT(pass_over(nullptr), StatusIs(absl::StatusCode::kFailedPrecondition,
                                             AllOf(HasSubstr("keys"), HasSubstr("SetSequence"))));
    WEFT_ASSIGN_OR_RETURN(const SequenceLayout three, SequenceLayout::Contiguous(kTokens, 3));
    EXPECT_THAT(pass_over(three.Parts(bootstrap.rank())),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("3 parts")));
    WEFT_ASSIGN_OR_RETURN(const SequenceLayout shorter, SequenceLayout::Contiguous(kTokens - 2, 2));
    EXPECT_THAT(pass_over(shorter.Parts(bootstrap.rank())),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dim 1 in parts of 11, 10")));
    return absl::OkStatus();
  });
}

// An overwritten tensor would reach the peers, or the consumers that have yet to take it.
TEST(ExchangeHooksErrors, RefuseToOverwriteATensorThatIsExchangedOrShared) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    for (const size_t before : {0, 1}) {
      WEFT_ASSIGN_OR_RETURN(TwoRanks two, TwoRanks::Make(bootstrap, {.consumers = 2}));
      WEFT_RETURN_IF_ERROR(two.model->AddKeySlot(two.model->block().KeySlot()));
      Rope rope("rope", std::make_shared<RopeTable>(RopeFrequencies(2, 10000.0, std::nullopt)));
      two.model->block().SetBefore([&](Invocation& invocation, size_t consumer, Tensors& inputs) {
        return consumer == before ? rope.Forward(invocation, {inputs[1]}).status() : absl::OkStatus();
      });
      EXPECT_THAT(two.Pass(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       AllOf(HasSubstr("rope would overwrite"), HasSubstr("'keys'"))));
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    }
    return absl::OkStatus();
  });
}

TEST(ExchangeHooksErrors, DetectABackwardOfTheSourceBeforeThatOfAConsumer) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(TwoRanks two, TwoRanks::Make(bootstrap));
    WEFT_RETURN_IF_ERROR(two.model->AddKeySlot(two.model->block().KeySlot()));
    SlotBlock& block = two.model->block();
    Invocation invocation;
    invocation.SetSequence(two.layout.Parts(bootstrap.rank()));
    const Tensor x = PartOf(two.pair.x, two.layout, bootstrap.rank());
    WEFT_ASSIGN_OR_RETURN(const Tensors projected, block.projection().Forward(invocation, {x}));
    const Tensor keys = projected[1].Reshape({x.dim(0), x.dim(1), 3, 2});
    WEFT_ASSIGN_OR_RETURN(const Tensors out, block.consumers()[0]->Forward(invocation, {keys, keys}));
    WEFT_RETURN_IF_ERROR(block.projection().Backward(invocation, {projected[0], projected[1]}).status());
    EXPECT_THAT(block.consumers()[0]->Backward(invocation, out).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("block.layer.projection"), HasSubstr("reverse order"))));
    return BootstrapBarrier(bootstrap);
  });
}

// Without a source only the first consumer can return the gradient of the others.
TEST(ExchangeHooksErrors, RefuseToLeaveOutTheConsumerThatReturnsTheGradient) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    for (const bool checkpointed : {false, true}) {
      WEFT_ASSIGN_OR_RETURN(TwoRanks two, TwoRanks::Make(bootstrap, {.consumers = 2}));
      SlotBlock& block = two.model->block();
      ExchangeHooks::Slot slot = block.KeySlot();
      slot.source = {};
      WEFT_RETURN_IF_ERROR(two.model->AddKeySlot(std::move(slot)));
      block.SetActivationCheckpointing(checkpointed);
      block.LeaveOutBackward(0);
      EXPECT_THAT(
          two.Pass(),
          StatusIs(absl::StatusCode::kFailedPrecondition,
                   AllOf(HasSubstr("the backward of 'block' left out the backward of 'block.consumer.0'"),
                         HasSubstr("slot 'keys'"), HasSubstr("give the slot a source"))));
      EXPECT_EQ(two.model->hooks().counters().returned, 0);
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
