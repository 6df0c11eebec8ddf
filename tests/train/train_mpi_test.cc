// Runs over MPI give the same bits as the same runs over threads.
#include <optional>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/train/train.h"

namespace weft {
namespace {

using ::weft::testing::WorldBootstrap;

TrainConfig SmallRun() {
  TrainConfig config;
  config.model.layers = 2;
  config.model.dim = 16;
  config.model.heads = 2;
  config.data.seq_len = 16;
  config.data.batch_size = 4;
  config.optimizer.lr = 1e-2;
  config.optimizer.steps = 3;
  return config;
}

absl::StatusOr<uint64_t> HashOverThreads(const TrainConfig& config, int ranks) {
  uint64_t hash = 0;
  const absl::Status status =
      RunThreadRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const TrainReport report, Train(bootstrap, config, {}));
        if (bootstrap.rank() == 0) {
          hash = report.weights_hash;
        }
        return absl::OkStatus();
      });
  return status.ok() ? absl::StatusOr<uint64_t>(hash) : status;
}

// Every rank runs threads of its own and compares, so each has a verdict.
void ExpectTheBitsOfThreads(const TrainConfig& config) {
  const absl::StatusOr<TrainReport> over_mpi = Train(WorldBootstrap(), config, {});
  const absl::StatusOr<uint64_t> over_threads = HashOverThreads(config, WorldBootstrap().size());
  EXPECT_OK(over_mpi);
  EXPECT_OK(over_threads);
  if (over_mpi.ok() && over_threads.ok()) {
    EXPECT_EQ(over_mpi->weights_hash, *over_threads);
  }
}

TEST(TrainOverMpi, GivesTheBitsOfTheSameRunOverThreads) {
  for (const int64_t replicate : {1, WorldBootstrap().size()}) {
    SCOPED_TRACE(absl::StrCat("replicate ", replicate));
    TrainConfig config = SmallRun();
    config.parallel.dp_replicate = replicate;
    ExpectTheBitsOfThreads(config);
  }
}

TEST(TrainOverMpi, GivesTheBitsOfThreadsWithSplitSequences) {
  const int ranks = WorldBootstrap().size();
  for (const CpScheme scheme : {CpScheme::kUlysses, CpScheme::kGather, CpScheme::kRing, CpScheme::kHybrid}) {
    if (ranks < (scheme == CpScheme::kHybrid ? 4 : 2)) continue;
    SCOPED_TRACE(Name(scheme));
    TrainConfig config = SmallRun();
    config.parallel.context.size = ranks;
    config.parallel.context.scheme = scheme;
    config.data.seq_len = 19;
    config.data.document_separator = scheme == CpScheme::kRing ? std::optional<int64_t>(' ') : std::nullopt;
    ExpectTheBitsOfThreads(config);
  }
}

TEST(TrainOverMpi, GivesTheBitsOfThreadsWithSparseAttention) {
  const int ranks = WorldBootstrap().size();
  for (const int split : {1, ranks}) {
    SCOPED_TRACE(absl::StrCat("sequences over ", split, " ranks"));
    TrainConfig config = SmallRun();
    config.attention.kind = AttentionKind::kDsa;
    config.attention.top_k = 5;
    config.attention.warmup_steps = 1;
    config.parallel.context.size = split;
    ExpectTheBitsOfThreads(config);
  }
}

}  // namespace
}  // namespace weft
