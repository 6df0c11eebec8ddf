// Whole runs over ranks that are threads: results that meshes and options do not change, the first lines,
// stop requests, and errors on which all ranks agree.
#include "tests/train/train_run.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "tests/support/forwarding_bootstrap.h"

namespace weft {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::ForwardingBootstrap;
using ::weft::testing::StatusIs;

TEST_F(TrainRun, StartsAtTheLossOfUniformPredictionsAndReducesIt) {
  config_.optimizer.steps = 40;
  const Result result = Run({1, 1});
  EXPECT_NEAR(result.steps.front().loss, std::log(256.0), 0.1);
  EXPECT_LT(result.steps.back().loss, 3.5);
  EXPECT_EQ(result.report.steps, 40);
}

TEST_F(TrainRun, FollowsTheLossesOfOneRankOnEveryMesh) {
  config_.optimizer.steps = 20;
  config_.data.batch_size = 12;
  ExpectLossesOfOneRank({{1, 2}, {1, 3}, {1, 4}, {2, 2}, {4, 1}});
}

TEST_F(TrainRun, FollowsTheLossesOfOneRankWithOddSizes) {
  config_.optimizer.steps = 20;
  config_.data.batch_size = 12;
  UseOddSizes();
  ExpectLossesOfOneRank({{1, 3}, {2, 2}, {1, 4}});
}

TEST_F(TrainRun, FollowsTheLossesOfOneRankForFeedForwardsThatRanksDoNotDivide) {
  config_.data.batch_size = 8;
  config_.data.grad_accum = 2;
  config_.optimizer.steps = 10;
  for (const int64_t ffn_dim : {3, 16, 17}) {
    config_.model.ffn_dim = ffn_dim;
    const Result one = Run({1, 1});
    for (const ActivationCheckpoint checkpoint : {ActivationCheckpoint::kNone, ActivationCheckpoint::kFull}) {
      for (const bool reshard : {true, false}) {
        for (const GradientSync sync : {GradientSync::kLast, GradientSync::kReduceScatter}) {
          config_.parallel.activation_checkpoint = checkpoint;
          config_.parallel.reshard_after_forward = reshard;
          config_.parallel.grad_sync = sync;
          const Result result = Run({2, 2});
          for (size_t i = 0; i < one.steps.size(); ++i) {
            EXPECT_NEAR(result.steps[i].loss / one.steps[i].loss, 1, 1e-5) << "ffn " << ffn_dim;
          }
        }
      }
    }
  }
}

TEST_F(TrainRun, GivesTheSameBitsForEverySharding) {
  std::set<uint64_t> hashes;
  for (const Mesh mesh : {Mesh{1, 4}, Mesh{2, 2}, Mesh{4, 1}}) {
    for (const bool zero_copy : {true, false}) {
      for (const int prefetch : {0, 1, 2}) {
        for (const bool reshard : {true, false}) {
          config_.parallel.zero_copy = zero_copy;
          config_.parallel.node_shared = prefetch == 1 ? NodeShared::kOff : NodeShared::kAuto;
          config_.parallel.prefetch_depth = prefetch;
          config_.parallel.reshard_after_forward = reshard;
          hashes.insert(Run(mesh).report.weights_hash);
        }
      }
    }
  }
  EXPECT_EQ(hashes.size(), 1);
}

// A rank whose weights differ: it changes a bit of the digests that it sends.
class FaultyBootstrap final : public ForwardingBootstrap {
 public:
  using ForwardingBootstrap::ForwardingBootstrap;
  absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                         absl::Duration timeout) override {
    std::string sent(blob);
    if (sent.find("digests of weights") != std::string::npos)
      sent.back() = static_cast<char>(sent.back() ^ 1);
    return ForwardingBootstrap::AllGatherBlob(sent, timeout);
  }
};

TEST_F(TrainRun, ComparesReplicasAfterEveryIntervalOfSteps) {
  config_.parallel.dp_replicate = 2;
  config_.parallel.dp_shard = 1;
  config_.optimizer.steps = 4;
  for (const int64_t interval : {2, 3}) {
    config_.parallel.check_replicas = interval;
    EXPECT_OK(RunError(2));
    const auto run = [&](Bootstrap& bootstrap) {
      FaultyBootstrap faulty(bootstrap);
      return Train(bootstrap.rank() == 1 ? faulty : bootstrap, config_, {}).status();
    };
    EXPECT_THAT(RunThreadRanks(NodeMap::OneNode(2), run),
                StatusIs(absl::StatusCode::kInternal, HasSubstr(absl::StrCat("after step ", interval))));
  }
}

TEST_F(TrainRun, ComparesReplicasOnlyIfThereAreAny) {
  config_.parallel.check_replicas = 2;
  config_.parallel.dp_replicate = 1;
  config_.parallel.dp_shard = 2;
  EXPECT_THAT(RunError(2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--check-replicas 2: needs replicas")));
}

TEST_F(TrainRun, GivesTheSameBitsForEveryNodeMap) {
  std::set<uint64_t> hashes;
  for (const int ranks_per_node : {1, 2, 4}) {
    hashes.insert(Run({2, 2}, NodeMap::RanksPerNode(4, ranks_per_node)).report.weights_hash);
  }
  EXPECT_EQ(hashes.size(), 1);
}

TEST_F(TrainRun, GivesTheSameBitsAndSendsFewerBytesWithWireCompression) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    config_.parallel.param_dtype = config_.parallel.reduce_dtype = dtype;
    for (const Mesh mesh : {Mesh{1, 4}, Mesh{2, 2}, Mesh{4, 1}}) {
      config_.parallel.wire_compression = WireCompression::kNone;
      const Result plain = Run(mesh, NodeMap::RanksPerNode(4, 2));
      config_.parallel.wire_compression = WireCompression::kLossless;
      const Result compressed = Run(mesh, NodeMap::RanksPerNode(4, 2));
      EXPECT_EQ(compressed.report.weights_hash, plain.report.weights_hash)
          << mesh.shard << " in " << Name(dtype);
      EXPECT_EQ(plain.steps[1].wire_saved_bytes, 0);
      // In f16 only the partial sums of several ranks of a node are compressed, which are in f32.
      EXPECT_EQ(compressed.steps[1].wire_saved_bytes > 0, dtype != DType::kF16 || mesh.replicate != 2);
      EXPECT_EQ(compressed.steps[1].copied_bytes, plain.steps[1].copied_bytes);
    }
  }
}

TEST_F(TrainRun, PrintsTheTransportIfThereAreSeveralNodes) {
  EXPECT_THAT(Printed({1, 2}, NodeMap::RanksPerNode(2, 1)),
              ContainsRegex("\ntransport +memory of this process  \\(between the 2 nodes\\)\n"));
  EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)), Not(HasSubstr("\ntransport ")));
}

TEST_F(TrainRun, PrintsTheWireCompressionBetweenNodes) {
  EXPECT_THAT(Printed({1, 2}, NodeMap::RanksPerNode(2, 1)), HasSubstr("wire-compression  "));
  config_.parallel.wire_compression = WireCompression::kNone;
  EXPECT_THAT(Printed({1, 2}, NodeMap::RanksPerNode(2, 1)),
              HasSubstr("wire-compression  none  (--wire-compression)"));
  EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)), Not(HasSubstr("wire-compression")));
}

TEST_F(TrainRun, DependsOnTheSeed) {
  const uint64_t first = Run({1, 1}).report.weights_hash;
  EXPECT_EQ(Run({1, 1}).report.weights_hash, first);
  config_.seed = 1;
  EXPECT_NE(Run({1, 1}).report.weights_hash, first);
}

TEST_F(TrainRun, CopiesNothingWithZeroCopyAndCountsCopiesWithoutIt) {
  for (const StepMetrics& step : Run({2, 2}).steps) {
    EXPECT_EQ(step.copied_bytes, 0);
    EXPECT_EQ(step.bytes.context, 0);
    EXPECT_EQ(step.wire_bytes, 0);
    EXPECT_EQ(step.bytes.all_gather, 0);  // In place.
    EXPECT_GT(step.bytes.reduce_scatter, 0);
    EXPECT_GT(step.bytes.all_reduce, 0);
    EXPECT_GT(step.peak_buffer_bytes, 0);
  }
  config_.parallel.zero_copy = false;
  for (const StepMetrics& step : Run({2, 2}).steps) {
    EXPECT_GT(step.copied_bytes, 0);
  }
}

TEST_F(TrainRun, TrainsInBf16CloseToFp32) {
  const Result exact = Run({1, 2});
  config_.parallel.param_dtype = DType::kBF16;
  config_.parallel.reduce_dtype = DType::kBF16;
  const Result rounded = Run({1, 2});
  for (size_t i = 0; i < exact.steps.size(); ++i) {
    EXPECT_NEAR(rounded.steps[i].loss, exact.steps[i].loss, 0.05);
  }
}

TEST_F(TrainRun, StopsAllRanksAfterTheSameStep) {
  config_.optimizer.steps = 1000;
  std::mutex mutex;
  std::set<int64_t> stopped_after;
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(3), [&](Bootstrap& bootstrap) -> absl::Status {
    TrainConfig config = config_;
    config.data.batch_size = 3;
    std::atomic<bool> stop{false};
    TrainEnvironment environment;
    environment.stop = &stop;
    environment.on_step = [&](const StepMetrics& metrics) {
      stop = bootstrap.rank() == 1 && metrics.step == 2;
    };
    WEFT_ASSIGN_OR_RETURN(const TrainReport report, Train(bootstrap, config, environment));
    EXPECT_TRUE(report.stopped);
    const std::lock_guard lock(mutex);
    stopped_after.insert(report.steps);
    return absl::OkStatus();
  }));
  EXPECT_EQ(stopped_after, std::set<int64_t>{3});
}

TEST_F(TrainRun, EndsAndExportsAsWithoutARequestIfTheStepThatTakesItIsTheLast) {
  config_.output.export_folder = folder_ / "export";
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    std::atomic<bool> stop{false};
    TrainEnvironment environment;
    environment.stop = &stop;
    environment.on_step = [&](const StepMetrics& metrics) {
      stop = bootstrap.rank() == 1 && metrics.step == config_.optimizer.steps - 1;
    };
    WEFT_ASSIGN_OR_RETURN(const TrainReport report, Train(bootstrap, config_, environment));
    EXPECT_FALSE(report.stopped);
    EXPECT_EQ(report.steps, config_.optimizer.steps);
    return absl::OkStatus();
  }));
  EXPECT_TRUE(std::filesystem::exists(config_.output.export_folder + "/model.safetensors"));
}

TEST_F(TrainRun, AnnouncesALongCheckOfTokenIdsAndStopsInIt) {
  config_.data.paths = {folder_.Write("data.u32", "")};
  std::filesystem::resize_file(config_.data.paths[0], (int64_t{1} << 30) + 4);  // Takes no room on the disk.
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* output = open_memstream(&text, &bytes);
  const std::atomic<bool> stop{true};
  EXPECT_THAT(RunThreadRanks(NodeMap::OneNode(2),
                             [&](Bootstrap& bootstrap) {
                               TrainEnvironment environment;
                               environment.stop = &stop;
                               environment.output = output;
                               return Train(bootstrap, config_, environment).status();
                             }),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped before all token ids were checked")));
  std::fclose(output);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  EXPECT_EQ(std::string(text, bytes), "data     checks 1.0 GiB of token ids against the vocabulary of 256\n");
}

TEST_F(TrainRun, NamesTheFlagOfAFolderForTensorBoardThatCannotBeMade) {
  config_.output.tensorboard_folder = config_.data.paths[0] + "/events";
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kNotFound,
                                    HasSubstr("--tensorboard: cannot create the folder '" +
                                              config_.output.tensorboard_folder + "': Not a directory")));
}

TEST_F(TrainRun, ExportsIntoAFolderThatIsRemovedDuringTheRun) {
  config_.output.export_folder = folder_ / "models/out";
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
    TrainEnvironment environment;
    if (bootstrap.rank() == 0)
      environment.on_step = [&](const StepMetrics&) { std::filesystem::remove_all(folder_ / "models"); };
    return Train(bootstrap, config_, environment).status();
  }));
  EXPECT_TRUE(std::filesystem::exists(config_.output.export_folder + "/model.safetensors"));
}

TEST_F(TrainRun, FailsOnAllRanksWithTheErrorOfARankThatCannotReadItsData) {
  config_.optimizer.steps = 1000;
  config_.data.batch_size = 2;
  const std::string path = config_.data.paths[0];
  const absl::Status status = RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
    TrainEnvironment environment;
    environment.on_step = [&](const StepMetrics& metrics) {
      if (bootstrap.rank() == 1 && metrics.step == 2) {
        std::ofstream(path) << "short";
      }
    };
    const absl::Status own = Train(bootstrap, config_, environment).status();
    EXPECT_EQ(own.code(), absl::StatusCode::kDataLoss) << own;
    return own;
  });
  EXPECT_THAT(std::string(status.message()), HasSubstr("text.txt' ends at byte"));
}

TEST_F(TrainRun, RefusesAMeshBatchOrVocabularyThatDoesNotFit) {
  config_.parallel.dp_replicate = 3;
  EXPECT_THAT(std::string(RunError(2).message()), HasSubstr("--dp-replicate 3"));
  config_.parallel.dp_replicate = 1;
  config_.data.batch_size = 3;
  EXPECT_THAT(std::string(RunError(2).message()), HasSubstr("--batch-size 3"));
  config_.data.batch_size = 2;
  config_.model.vocab_size = 100;
  EXPECT_TRUE(absl::IsDataLoss(RunError(2)));
}

TEST_F(TrainRun, WarnsOfDataThatAreNoText) {
  using namespace std::string_literals;
  const std::pair<std::string, const char*> formats[] = {{"\x1f\x8b"s, "gzip file"},
                                                         {"\x28\xb5\x2f\xfd"s, "Zstandard file"},
                                                         {"PK\x03\x04"s, "ZIP archive"},
                                                         {"PAR1"s, "Parquet file"},
                                                         {"\x93NUMPY"s, "NumPy file"}};
  EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)), Not(HasSubstr("as if they were text")));
  const std::vector<std::string> text = config_.data.paths;
  config_.optimizer.steps = 1;
  for (const auto& [beginning, name] : formats) {
    const std::string path = folder_.Write("packed", beginning + SomeText());
    const std::string warning = absl::StrCat("warning  '", path, "' is a ", name, ", whose bytes are read");
    config_.data.paths = {text[0], path};
    config_.eval.paths = {};
    EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)), HasSubstr(warning));
    config_.data.paths = text;
    config_.eval.paths = {path};
    EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)), HasSubstr(warning));
  }
}

}  // namespace
}  // namespace weft
