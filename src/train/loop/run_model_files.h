// Files of a model that rank 0 of a run writes: those beside its checkpoints, and those of its export.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "src/train/output/export_hf.h"
#include "src/train/plan/inputs.h"
#include "weft/train/config.h"

namespace weft {

// The dtype of exported weights.
DType ExportDType(const TrainConfig& config);

// Lifetime: `config` and `inputs` must outlive it.
class RunModelFiles {
 public:
  // Reads the tokenizer and generation files of the source folder, if the run writes them anywhere, and
  // claims the folder of the export. Errors: those of ReadCompanions and OpenExport.
  static absl::StatusOr<std::unique_ptr<RunModelFiles>> Open(const TrainConfig& config,
                                                             const TrainInputs& inputs, LlamaModel& model);

  // The files beside a checkpoint, by name. With them a checkpoint is a model folder, or a PEFT folder.
  std::map<std::string, std::string> BesideCheckpoint() const;
  // Null without --export-hf.
  const HfExport* export_target() const { return export_ ? &*export_ : nullptr; }
  // Messages of the export's folder: see OutputFolder::messages.
  std::vector<std::string> messages() const;

 private:
  RunModelFiles(const TrainConfig& config, const TrainInputs& inputs) : config_(config), inputs_(inputs) {}
  // The configuration files beside weights, and the companions, by name.
  std::map<std::string, std::string> FilesBeside(ExportedWeights weights, DType dtype) const;

  const TrainConfig& config_;
  const TrainInputs& inputs_;
  std::vector<ModelCompanion> companions_;
  std::optional<HfExport> export_;
};

}  // namespace weft
