#include "src/train/loop/trainer.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/plan/inputs.h"
#include "src/train/plan/run_plan.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::kTestTimeout;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

// A small model whose sequences are split over two ranks.
TrainConfig SplitConfig(const TempFolder& folder) {
  TrainConfig config;
  config.data.paths = {folder.Write("text.txt", std::string(4000, 'a'))};
  config.model.layers = 1;
  config.model.dim = 16;
  config.model.heads = 2;
  config.model.ffn_dim = 24;
  config.data.seq_len = 16;
  config.optimizer.steps = 1;
  config.parallel.context.size = 2;
  return config;
}

// Without an agreement, the peers of that rank would wait for it in the next exchange.
TEST(Trainer, EndsOnAllRanksWithTheErrorOfARankThatCannotSplitSequences) {
  const TempFolder folder;
  const TrainConfig config = SplitConfig(folder);
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(TrainInputs inputs, OpenInputs(config));
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<LlamaModel> model, LlamaModel::Create(inputs.model));
    WEFT_ASSIGN_OR_RETURN(RunPlan plan, MakeRunPlan(config, inputs, bootstrap.node_map()));
    if (bootstrap.rank() == 1) plan.context.scheme.ulysses_degree = 3;
    EngineOptions options;
    options.timeout = kTestTimeout;
    EXPECT_THAT(
        Trainer::Create(bootstrap, inputs.corpus, plan, std::move(model), LoadInitialValues(1), options),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3")));
    return AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout);
  });
}

// Its adapters would count twice.
TEST(Trainer, TakesNoStepAfterItsAdaptersWereMerged) {
  const TempFolder folder;
  TrainConfig config = SplitConfig(folder);
  config.parallel.context.size = 1;
  config.lora = {.rank = 2, .targets = "all-linear"};
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(TrainInputs inputs, OpenInputs(config));
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<LlamaModel> model, CreateModel(inputs));
    WEFT_ASSIGN_OR_RETURN(const RunPlan plan, MakeRunPlan(config, inputs, bootstrap.node_map()));
    EngineOptions options;
    options.timeout = kTestTimeout;
    WEFT_ASSIGN_OR_RETURN(
        const std::unique_ptr<Trainer> trainer,
        Trainer::Create(bootstrap, inputs.corpus, plan, std::move(model), LoadInitialValues(1), options));
    const auto step = [&](int64_t number) {
      return trainer->Step(number, {}, [] { return absl::OkStatus(); }).status();
    };
    WEFT_RETURN_IF_ERROR(step(1));
    WEFT_RETURN_IF_ERROR(trainer->MergeAdapters());
    EXPECT_THAT(step(2), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("train before")));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft
