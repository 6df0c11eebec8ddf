// Files of the indexers of sparse attention: exports, Hugging Face folders, checkpoints.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/train/sparse/sparse_run.h"
#include "weft/train/checkpoint.h"
#include "weft/train/hf_config.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

class IndexerFiles : public SparseRun {
 protected:
  std::string exported() const { return folder_ / "exported"; }
  // Exports a run on `mesh`, and returns the hash of its weights.
  uint64_t Export(const Mesh& mesh) {
    config_.output.export_folder = exported();
    const uint64_t hash = Run(mesh).report.weights_hash;
    config_.output.export_folder.clear();
    return hash;
  }
  // From now on runs load the export, and one step leaves its weights as they are.
  void LoadExport() {
    config_.model = {};
    config_.model.hf_model = exported();
    config_.optimizer.lr = 0;
    config_.optimizer.steps = 1;
  }
  absl::Status LoadError() { return RunError(2); }
};

TEST_F(IndexerFiles, AreExportedBesideALlamaAndLoadedAgain) {
  for (const Mesh mesh : {Mesh{1, 1}, Mesh{2, 2}, Mesh{1, 3}}) {
    config_.data.batch_size = 12;
    const TrainConfig config = config_;
    const uint64_t trained = Export(mesh);
    ASSERT_OK_AND_ASSIGN(const SafetensorsReader llama, SafetensorsReader::Open(exported()));
    for (const auto& [name, entry] : llama.entries()) EXPECT_THAT(name, Not(HasSubstr("indexer")));
    ASSERT_OK_AND_ASSIGN(const SafetensorsReader indexers, SafetensorsReader::Open(exported(), "indexer"));
    for (const auto& [name, entry] : indexers.entries()) EXPECT_THAT(name, HasSubstr(".indexer."));
    EXPECT_EQ(*ReadIndexerConfig(exported()), config_.attention.sparse_config());
    LoadExport();
    EXPECT_EQ(Run({1, 2}).report.weights_hash, trained);
    config_ = config;
  }
}

TEST_F(IndexerFiles, LeaveTheFilesOfTheLlamaAsDenseAttentionWritesThem) {
  config_.optimizer.lr = 0;
  Export({1, 2});
  std::map<std::string, std::string> sparse;
  for (const char* name : {"model.safetensors", "config.json"})
    sparse[name] = ReadFile(exported() + "/" + name);
  config_.attention = {};
  Export({1, 2});
  for (const auto& [name, content] : sparse) EXPECT_EQ(ReadFile(exported() + "/" + name), content) << name;
  // The export of another model leaves no indexers behind.
  EXPECT_FALSE(fs::exists(exported() + "/indexer.safetensors"));
  EXPECT_FALSE(fs::exists(exported() + "/indexer_config.json"));
}

TEST_F(IndexerFiles, AreNotNeededToLoadTheLlama) {
  const uint64_t trained = Export({1, 2});
  LoadExport();
  const AttentionConfig sparse = std::exchange(config_.attention, {});
  Run({1, 2});  // Dense attention ignores them.
  config_.attention = sparse;
  EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)), HasSubstr("(indexers of --hf-model)"));
  fs::remove(exported() + "/indexer.safetensors");
  fs::remove(exported() + "/indexer_config.json");
  EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)),
              HasSubstr("(new indexers by --seed: --hf-model has none)"));
  EXPECT_NE(Run({1, 2}).report.weights_hash, trained);
}

TEST_F(IndexerFiles, AreTrainedFromADenseModelByAWarmUp) {
  const AttentionConfig sparse = std::exchange(config_.attention, {});
  config_.optimizer.steps = 60;
  Export({1, 2});
  config_.attention = sparse;
  config_.attention.warmup_steps = 60;
  config_.model = {};
  config_.model.hf_model = exported();
  const std::vector<StepMetrics> steps = Run({1, 1}).steps;
  EXPECT_LT(steps.back().indexers->loss, 0.5 * steps.front().indexers->loss);
  EXPECT_GT(steps.front().indexers->loss, 1e-3);  // The attention of the dense model is not uniform.
  config_.optimizer.steps = 20;
  for (const Mesh mesh : {Mesh{2, 2}, Mesh{1, 2, 2}}) {
    const std::vector<StepMetrics> others = Run(mesh).steps;
    for (size_t i = 0; i < others.size(); ++i) {
      EXPECT_NEAR(others[i].indexers->loss / steps[i].indexers->loss, 1, 1e-3) << i;
      EXPECT_NEAR(others[i].indexers->grad_norm / steps[i].indexers->grad_norm, 1, 1e-3) << i;
    }
  }
}

TEST_F(IndexerFiles, MustFitTheFlags) {
  Export({1, 2});
  LoadExport();
  config_.attention.index_heads = 4;
  EXPECT_THAT(LoadError(), StatusIs(absl::StatusCode::kInvalidArgument,
                                    AllOf(HasSubstr("--dsa-index-heads 4: the indexers of"),
                                          HasSubstr("have 2: give --dsa-index-heads 2"))));
  config_.attention.index_heads = 2;
  config_.attention.index_dim = 16;
  EXPECT_THAT(LoadError(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--dsa-index-dim 16")));
  config_.attention.index_dim = 8;
  config_.attention.top_k = 3;  // Of no parameter.
  EXPECT_OK(LoadError());
}

TEST_F(IndexerFiles, MustBeWhole) {
  Export({1, 2});
  LoadExport();
  const std::string config = ReadFile(exported() + "/indexer_config.json");
  folder_.Write("exported/indexer_config.json", "{\"index_n_heads\": 2}");
  EXPECT_THAT(LoadError(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("index_head_dim is missing")));
  fs::remove(exported() + "/indexer_config.json");
  EXPECT_THAT(LoadError(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("indexer_config.json")));
  folder_.Write("exported/indexer_config.json", config);
  fs::copy_file(exported() + "/model.safetensors", exported() + "/indexer.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(LoadError(), StatusIs(absl::StatusCode::kNotFound, HasSubstr(".indexer.")));
  fs::remove(exported() + "/indexer.safetensors");
  EXPECT_THAT(LoadError(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("neither indexer.safetensors")));
}

TEST_F(IndexerFiles, WhoseScoresOverflowSkipTheWholeStep) {
  Export({1, 2});
  LoadExport();
  std::string file = ReadFile(exported() + "/indexer.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const float huge = 3e38F;
  for (size_t at = sizeof(header_bytes) + header_bytes; at < file.size(); at += sizeof(huge)) {
    std::memcpy(file.data() + at, &huge, sizeof(huge));
  }
  folder_.Write("exported/indexer.safetensors", file);
  config_.optimizer.max_skipped_steps = 1;
  const Result result = Run({1, 2});
  EXPECT_EQ(result.report.skipped_steps, 1);
  const IndexerMetrics& indexers = *result.steps[0].indexers;
  EXPECT_FALSE(std::isfinite(indexers.loss) && std::isfinite(indexers.grad_norm));
  EXPECT_TRUE(std::isfinite(result.steps[0].loss));
  config_.optimizer.max_skipped_steps = 0;
  EXPECT_THAT(LoadError(), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("those of the indexers")));
}

TEST_F(IndexerFiles, MakeACheckpointAModelFolderWithIndexers) {
  config_.checkpoint.folder = folder_ / "checkpoints";
  const uint64_t trained = Run({2, 2}).report.weights_hash;
  config_.checkpoint = {};
  const std::string saved = Saved();
  LoadExport();
  config_.model.hf_model = saved;
  EXPECT_EQ(Run({1, 2}).report.weights_hash, trained);
  // Without a run.
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(saved));
  ASSERT_OK(checkpoint.Verify());
  ASSERT_OK(checkpoint.ExportHf(exported()));
  EXPECT_FALSE(fs::exists(exported() + "/indexer_optimizer.safetensors"));
  config_.model.hf_model = exported();
  EXPECT_EQ(Run({1, 2}).report.weights_hash, trained);
}

}  // namespace
}  // namespace weft
