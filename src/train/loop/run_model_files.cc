#include "src/train/loop/run_model_files.h"

#include "weft/core/status.h"
#include "weft/train/peft_adapter.h"

namespace weft {

DType ExportDType(const TrainConfig& config) { return config.output.export_dtype.value_or(DType::kF32); }

absl::StatusOr<std::unique_ptr<RunModelFiles>> RunModelFiles::Open(const TrainConfig& config,
                                                                   const TrainInputs& inputs,
                                                                   LlamaModel& model) {
  std::unique_ptr<RunModelFiles> files(new RunModelFiles(config, inputs));
  const std::string& folder = config.output.export_folder;
  if (folder.empty() && config.checkpoint.folder.empty()) return files;
  const std::string source = config.model.hf_folder();
  WEFT_ASSIGN_OR_RETURN(files->companions_, ReadCompanions(source));
  if (folder.empty()) return files;
  const ExportedWeights weights = ExportedWeightsOf(config);
  const DType dtype = ExportDType(config);
  WEFT_ASSIGN_OR_RETURN(
      files->export_, OpenExport(folder, source, files->FilesBeside(weights, dtype), model, weights, dtype));
  return files;
}

std::map<std::string, std::string> RunModelFiles::BesideCheckpoint() const {
  return FilesBeside(inputs_.lora ? ExportedWeights::kAdapters : ExportedWeights::kModel, DType::kF32);
}

std::vector<std::string> RunModelFiles::messages() const {
  return export_ ? export_->folder->messages() : std::vector<std::string>{};
}

std::map<std::string, std::string> RunModelFiles::FilesBeside(ExportedWeights weights, DType dtype) const {
  if (weights == ExportedWeights::kModel)
    return ModelFiles(inputs_.model, inputs_.hf_config, companions_, dtype);
  const std::string base = config_.model.hf_weights() ? config_.model.hf_model : "";
  return AdapterFiles(FormatPeftAdapter(*inputs_.lora, base, inputs_.adapter_config), companions_);
}

}  // namespace weft
