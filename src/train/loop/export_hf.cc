#include "src/train/loop/export_hf.h"

#include <filesystem>
#include <system_error>

#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"
#include "src/train/files/shard_runs.h"
#include "weft/core/status.h"
#include "weft/train/hf_config.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Files of a model's folder besides weights and configuration.
constexpr const char* kCompanions[] = {"tokenizer.json",     "tokenizer_config.json",
                                       "tokenizer.model",    "special_tokens_map.json",
                                       "added_tokens.json",  "vocab.json",
                                       "merges.txt",         "generation_config.json",
                                       "chat_template.json", "chat_template.jinja"};

SafetensorsLayout LayoutOf(LlamaModel& model) {
  std::vector<SafetensorsLayout::Tensor> tensors;
  for (const std::shared_ptr<Parameter>& parameter : model.AllParameters()) {
    tensors.push_back({parameter->name, parameter->shape});
  }
  return SafetensorsLayout(tensors);
}

absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? ErrnoStatus(error.value(), "create the folder", folder) : absl::OkStatus();
}

std::string WeightsPath(const HfExport& target) { return absl::StrCat(target.folder, "/model.safetensors"); }

std::string ConfigPath(const HfExport& target) { return absl::StrCat(target.folder, "/config.json"); }

// The path of a companion file's copy.
std::string CopyPath(const HfExport& target, const std::string& companion) {
  return absl::StrCat(target.folder, "/", fs::path(companion).filename().string());
}

absl::Status CopyCompanions(const HfExport& target) {
  for (const std::string& companion : CompanionFiles(target.source_folder)) {
    WEFT_ASSIGN_OR_RETURN(const std::string content, ReadWholeFile(companion));
    WEFT_RETURN_IF_ERROR(WriteWholeFile(CopyPath(target, companion), content));
  }
  return absl::OkStatus();
}

absl::Status WriteShards(const std::string& path, const SafetensorsLayout& layout,
                         const std::vector<ShardView>& shards) {
  WEFT_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Open(path, layout));
  for (const ShardView& shard : shards) {
    WEFT_RETURN_IF_ERROR(ForEachRun(shard, [&](int64_t first, absl::Span<const float> values) {
      return writer.Write(shard.parameter->name, first, values);
    }));
  }
  return writer.Close();
}

// Runs on rank 0 after all weights are written. Renames the weights last, so a folder with weights is
// complete.
absl::Status Finish(const HfExport& target, const std::string& weights, const LlamaConfig& config) {
  WEFT_RETURN_IF_ERROR(CopyCompanions(target));
  WEFT_RETURN_IF_ERROR(WriteWholeFile(ConfigPath(target), FormatHfConfig(config, target.source_config)));
  return SafetensorsWriter::Commit(weights);
}

}  // namespace

std::vector<std::string> CompanionFiles(const std::string& folder) {
  std::vector<std::string> files;
  for (const char* name : kCompanions) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (!folder.empty() && fs::exists(path)) files.push_back(path);
  }
  return files;
}

std::vector<std::string> ExportedFiles(const HfExport& target) {
  std::vector<std::string> files = {WeightsPath(target), ConfigPath(target)};
  for (const std::string& companion : CompanionFiles(target.source_folder)) {
    files.push_back(CopyPath(target, companion));
  }
  return files;
}

absl::Status ExportHf(Bootstrap& bootstrap, const HfExport& target, LlamaModel& model,
                      const std::vector<ShardView>& shards, bool writes, absl::Duration timeout) {
  const std::string weights = WeightsPath(target);
  const SafetensorsLayout layout = LayoutOf(model);
  const bool first = bootstrap.rank() == 0;
  // Each phase starts after the one before has succeeded on all ranks.
  absl::Status status = first ? MakeFolder(target.folder) : absl::OkStatus();
  if (first && status.ok()) {
    status = SafetensorsWriter::Create(weights, layout);
  }
  status = AgreeOnStatus(bootstrap, status, timeout);
  if (status.ok()) {
    status =
        AgreeOnStatus(bootstrap, writes ? WriteShards(weights, layout, shards) : absl::OkStatus(), timeout);
  }
  if (status.ok()) {
    status =
        AgreeOnStatus(bootstrap, first ? Finish(target, weights, model.config()) : absl::OkStatus(), timeout);
  }
  if (first && !status.ok()) {
    SafetensorsWriter::Discard(weights);
  }
  return status;
}

}  // namespace weft
