// Exchanges whose source or consumers are recomputed in backward.
#include <gtest/gtest.h>

#include "tests/context_parallel/support/slot_model.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

TEST(ExchangeHooks, GiveTheSameBitsWithRecomputedActivations) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    const SlotBlockOptions options{.consumers = 2};
    for (const bool has_source : {false, true}) {
      WEFT_ASSIGN_OR_RETURN(const PassResult kept, SlotPassWith(bootstrap, options, has_source));
      const auto checkpointed = [&](auto select) {
        return SlotPassWith(bootstrap, options, has_source, [&](SlotModel& model) {
          select(model.block()).SetActivationCheckpointing(true);
        });
      };
      WEFT_ASSIGN_OR_RETURN(const PassResult block,
                            checkpointed([](SlotBlock& all) -> Module& { return all; }));
      WEFT_ASSIGN_OR_RETURN(const PassResult source,
                            checkpointed([](SlotBlock& all) -> Module& { return all.projection(); }));
      WEFT_ASSIGN_OR_RETURN(const PassResult consumer,
                            checkpointed([](SlotBlock& all) -> Module& { return *all.consumers()[0]; }));
      EXPECT_TRUE(SameBits(kept, block));
      EXPECT_TRUE(SameBits(kept, source));
      EXPECT_TRUE(SameBits(kept, consumer));
    }
    return absl::OkStatus();
  });
}

// The source runs again below a module that is recomputed, while the consumers are not: they return the
// gradient.
TEST(ExchangeHooks, GiveTheSameBitsIfOnlyTheSourceIsRecomputed) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    const SlotBlockOptions options{.consumers = 2};
    WEFT_ASSIGN_OR_RETURN(const PassResult kept, SlotPassWith(bootstrap, options, true));
    WEFT_ASSIGN_OR_RETURN(const PassResult again,
                          SlotPassWith(bootstrap, options, true, [](SlotModel& model) {
                            model.block().layer().SetActivationCheckpointing(true);
                          }));
    EXPECT_TRUE(SameBits(kept, again));
    return absl::OkStatus();
  });
}

// The recomputed source launches an exchange that no consumer takes, since each launched one of its own
// when it was recomputed.
TEST(ExchangeHooks, GiveTheSameBitsIfSourceAndConsumersAreRecomputedApart) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    const SlotBlockOptions options{.consumers = 1};
    WEFT_ASSIGN_OR_RETURN(const PassResult kept, SlotPassWith(bootstrap, options, true));
    WEFT_ASSIGN_OR_RETURN(const PassResult again,
                          SlotPassWith(bootstrap, options, true, [](SlotModel& model) {
                            model.block().layer().SetActivationCheckpointing(true);
                            for (Parent* parent : model.block().parents())
                              parent->SetActivationCheckpointing(true);
                          }));
    EXPECT_TRUE(SameBits(kept, again));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
