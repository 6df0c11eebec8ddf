// Fixture of checkpoints of two arrays, which ranks that are threads save and load.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "src/train/checkpoint/checkpoint_folder.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/nn/parameter.h"
#include "weft/train/checkpoint.h"

namespace weft {

inline constexpr int64_t kMatrixRows = 12;
inline constexpr int64_t kMatrixColumns = 10;

// Partition of a matrix of kMatrixRows x kMatrixColumns over ranks.
enum class ArrayCut { kByRows, kByColumns, kOneRank };

// A rank's part of two arrays, whose values encode array and element.
class SavedArrays {
 public:
  SavedArrays(ArrayCut cut, int rank, int ranks) {
    matrix_->name = "matrix";
    matrix_->shape = {kMatrixRows, kMatrixColumns};
    vector_->name = "vector";
    vector_->shape = {7};
    if (cut == ArrayCut::kByColumns) {
      const int64_t width = (kMatrixColumns + ranks - 1) / ranks;
      const int64_t first = std::min(kMatrixColumns, width * rank);
      const int64_t count = std::min(kMatrixColumns, first + width) - first;
      if (count > 0) Add(*matrix_, {0, 0, first, kMatrixRows, count, kMatrixColumns});
    } else {
      const int64_t elements = kMatrixRows * kMatrixColumns;
      const int64_t first = cut == ArrayCut::kOneRank ? (rank == 0 ? 0 : elements) : elements * rank / ranks;
      const int64_t end = cut == ArrayCut::kOneRank ? elements : elements * (rank + 1) / ranks;
      if (first < end) Add(*matrix_, {0, 0, first, 1, end - first, 0});
    }
    if (rank == ranks - 1) Add(*vector_, {1, 0, 0, 1, 7, 0});
  }

  static float Value(const std::string& name, int64_t element) {
    return static_cast<float>(element + (name == "matrix" ? 1000 : 5000));
  }
  void Fill() {
    ForEach([](const std::string& name, int64_t element, float& value) { value = Value(name, element); });
  }
  void Fill(float constant) {
    ForEach([&](const std::string&, int64_t, float& value) { value = constant; });
  }
  int WrongValues() {
    int wrong = 0;
    ForEach([&](const std::string& name, int64_t element, float& value) {
      wrong += value != Value(name, element);
    });
    return wrong;
  }

  std::vector<ShardView> Shards() {
    std::vector<ShardView> shards;
    for (Part& part : parts_) shards.push_back({part.parameter, part.piece, part.values.data(), nullptr});
    return shards;
  }
  CheckpointState ToSave(int64_t step) {
    CheckpointState state;
    state.step = step;
    state.arrays = {{"model", "", Shards()}};
    state.counts = {{"count", 3}};
    state.properties = {{"name", "value"}};
    state.files = {{"config.json", "{}\n"}};
    for (const Part& part : parts_) state.counts_of_parameters[part.parameter->name] = 2;
    return state;
  }

 private:
  struct Part {
    const Parameter* parameter;
    ShardPiece piece;
    std::vector<float> values;
  };
  void Add(const Parameter& parameter, const ShardPiece& piece) {
    parts_.push_back({&parameter, piece, std::vector<float>(static_cast<size_t>(piece.elements()))});
  }
  void ForEach(const std::function<void(const std::string&, int64_t, float&)>& visit) {
    for (Part& part : parts_) {
      for (int64_t i = 0; i < part.piece.elements(); ++i) {
        const int64_t element =
            part.piece.start + i / part.piece.run_length * part.piece.run_stride + i % part.piece.run_length;
        visit(part.parameter->name, element, part.values[static_cast<size_t>(i)]);
      }
    }
  }

  std::shared_ptr<Parameter> matrix_ = std::make_shared<Parameter>();
  std::shared_ptr<Parameter> vector_ = std::make_shared<Parameter>();
  std::vector<Part> parts_;
};

class CheckpointTest : public ::testing::Test {
 protected:
  std::string root() const { return folder_ / "checkpoints"; }
  std::string Path(int64_t step) const { return absl::StrCat(root(), "/", CheckpointName(step)); }

  absl::Status OnRanks(int ranks, const std::function<absl::Status(Bootstrap&)>& body) {
    return RunThreadRanks(NodeMap::OneNode(ranks), body);
  }
  // Saves checkpoints of these steps, one after the other; the first one with this parent.
  absl::Status Save(ArrayCut cut, int ranks, const std::vector<int64_t>& steps = {1},
                    std::optional<int64_t> parent = std::nullopt) {
    return OnRanks(ranks, [&](Bootstrap& bootstrap) -> absl::Status {
      SavedArrays state(cut, bootstrap.rank(), bootstrap.size());
      state.Fill();
      WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
      for (const int64_t step : steps) {
        CheckpointState to_save = state.ToSave(step);
        if (step == steps.front()) to_save.parent = parent;
        WEFT_RETURN_IF_ERROR(saver->Start(std::move(to_save)));
        WEFT_RETURN_IF_ERROR(saver->Finish());
      }
      return absl::OkStatus();
    });
  }
  absl::Status Load(ArrayCut cut, int ranks, int64_t step = 1) {
    return OnRanks(ranks, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(Path(step)));
      SavedArrays state(cut, bootstrap.rank(), bootstrap.size());
      state.Fill(-1);
      WEFT_RETURN_IF_ERROR(FillShards(state.Shards(), checkpoint.Loader("model")));
      return state.WrongValues() == 0 ? absl::OkStatus() : absl::InternalError("wrong values");
    });
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root()))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  TempFolder folder_;
  CheckpointOptions options_;
};

}  // namespace weft
