#include "src/train/output/export_hf.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "src/train/checkpoint/checkpoint_folder.h"
#include "src/train/files/file_io.h"
#include "src/train/files/model_folder.h"
#include "src/train/files/shard_runs.h"
#include "src/train/files/shared_folder.h"
#include "src/train/plan/parameter_sets.h"
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

constexpr const char* kIndexerWeights = "indexer.safetensors";
constexpr const char* kAdapterWeights = "adapter_model.safetensors";
// Tokenizers have up to about 30 MB.
constexpr int64_t kMaxCompanionBytes = 256 << 20;

// A file with weights, and the parameters whose weights it has.
struct WeightsFile {
  ExportedFile file;
  std::vector<ShardView> ShardSets::*set;
};

// The Llama's file, and with sparse attention that of the indexers; or the adapters' file alone.
std::vector<WeightsFile> WeightsFilesOf(LlamaModel& model, ExportedWeights weights, DType dtype) {
  std::vector<ShardView> all;
  const auto parameters = model.AllParameters();
  all.reserve(parameters.size());
  for (const auto& parameter : parameters) all.push_back({parameter.get(), {}, nullptr, nullptr});
  const ShardSets sets = SplitIntoSets(all);
  std::vector<WeightsFile> files;
  const auto add = [&](const char* name, std::vector<ShardView> ShardSets::*set) {
    std::vector<SafetensorsLayout::Tensor> tensors;
    for (const ShardView& shard : sets.*set)
      tensors.push_back({shard.parameter->name, shard.parameter->shape});
    if (!tensors.empty()) files.push_back({{name, SafetensorsLayout(tensors, dtype)}, set});
  };
  if (weights == ExportedWeights::kAdapters) {
    add(kAdapterWeights, &ShardSets::adapters);
  } else {
    add(kWeightsFile, &ShardSets::llama);
    add(kIndexerWeights, &ShardSets::indexers);
  }
  return files;
}

std::vector<ExportedFile> FilesOf(const std::vector<WeightsFile>& weights) {
  std::vector<ExportedFile> files;
  files.reserve(weights.size());
  for (const WeightsFile& file : weights) files.push_back(file.file);
  return files;
}

std::vector<std::string> OldWeights(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (std::string name = entry->path().filename(); IsWeightsFile(name)) names.push_back(std::move(name));
  }
  return names;
}

absl::Status CheckReplaceable(const std::vector<std::string>& files) {
  for (const std::string& path : files) {
    struct stat info {};
    if (lstat(path.c_str(), &info) != 0) continue;
    if (S_ISDIR(info.st_mode)) return ErrnoStatus(EISDIR, "write", path);
    if (S_ISREG(info.st_mode) && faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) {
      return ErrnoStatus(errno, "write", path);
    }
  }
  return absl::OkStatus();
}

absl::Status WriteShards(const std::string& staging, const ExportedFile& file,
                         const std::vector<ShardView>& shards) {
  WEFT_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                        SafetensorsWriter::Open(absl::StrCat(staging, "/", file.name), file.layout));
  for (const ShardView& shard : shards) {
    WEFT_RETURN_IF_ERROR(ForEachRun(shard, [&](int64_t first, absl::Span<const float> values) {
      return writer.Write(shard.parameter->name, first, values);
    }));
  }
  return writer.Close();
}

absl::Status WriteShards(const std::string& staging, const std::vector<WeightsFile>& files,
                         const std::vector<ShardView>& shards) {
  const ShardSets sets = SplitIntoSets(shards);
  for (const WeightsFile& weights : files)
    WEFT_RETURN_IF_ERROR(WriteShards(staging, weights.file, sets.*weights.set));
  return absl::OkStatus();
}

// Runs on rank 0 after all weights are written.
absl::Status Finish(const HfExport& target, const std::string& staging,
                    const std::vector<ExportedFile>& files) {
  for (const ExportedFile& file : files) {
    WEFT_RETURN_IF_ERROR(SafetensorsWriter::Commit(absl::StrCat(staging, "/", file.name)));
  }
  for (const auto& [name, content] : target.files) {
    WEFT_RETURN_IF_ERROR(WriteWholeFile(absl::StrCat(staging, "/", name), content));
  }
  return target.folder->Commit(files.front().name, IsWeightsFile);
}

// Makes the staging folder on rank 0, and returns its path on all ranks. Collective: all ranks.
absl::StatusOr<std::string> Stage(Bootstrap& bootstrap, const absl::StatusOr<const HfExport*>& target,
                                  const std::vector<ExportedFile>& files, absl::Duration timeout) {
  const auto create = [&]() -> absl::StatusOr<std::string> {
    WEFT_RETURN_IF_ERROR(target.status());
    WEFT_ASSIGN_OR_RETURN(std::string staging, (*target)->folder->Stage());
    for (const ExportedFile& file : files) {
      WEFT_RETURN_IF_ERROR(SafetensorsWriter::Create(absl::StrCat(staging, "/", file.name), file.layout));
    }
    return staging;
  };
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> folders,
                        ExchangeBlobs(bootstrap, "staging folder of the export",
                                      bootstrap.rank() == 0 ? create() : std::string(), timeout));
  return folders[0];
}

}  // namespace

ExportedWeights ExportedWeightsOf(const TrainConfig& config) {
  return config.lora.enabled() && !config.output.export_merged ? ExportedWeights::kAdapters
                                                               : ExportedWeights::kModel;
}

std::vector<std::string> CompanionFiles(const std::string& folder) {
  std::vector<std::string> files;
  for (const char* name : kCompanions) {
    const std::string path = absl::StrCat(folder, "/", name);
    struct stat info {};
    if (!folder.empty() && lstat(path.c_str(), &info) == 0) files.push_back(path);
  }
  return files;
}

absl::StatusOr<std::vector<ModelCompanion>> ReadCompanions(const std::string& folder) {
  std::vector<ModelCompanion> companions;
  for (const std::string& path : CompanionFiles(folder)) {
    const std::string name = fs::path(path).filename();
    WEFT_ASSIGN_OR_RETURN(std::string content, ReadModelFile(folder, name, kMaxCompanionBytes));
    companions.push_back({name, std::move(content)});
  }
  return companions;
}

std::map<std::string, std::string> ModelFiles(const LlamaConfig& config, const std::string& source_config,
                                              const std::vector<ModelCompanion>& companions, DType dtype) {
  std::map<std::string, std::string> files = {{kConfigFile, FormatHfConfig(config, source_config, dtype)}};
  if (config.sparse_attention) files[kIndexerConfig] = FormatIndexerConfig(*config.sparse_attention);
  for (const ModelCompanion& companion : companions) files[companion.name] = companion.content;
  return files;
}

std::map<std::string, std::string> AdapterFiles(std::string adapter_config,
                                                const std::vector<ModelCompanion>& companions) {
  std::map<std::string, std::string> files = {{kAdapterConfig, std::move(adapter_config)}};
  for (const ModelCompanion& companion : companions) files[companion.name] = companion.content;
  return files;
}

std::vector<std::string> ExportedFiles(const std::string& folder, const std::string& source_folder,
                                       ExportedWeights weights) {
  std::vector<std::string> names = {kWeightsFile, kConfigFile};
  if (weights == ExportedWeights::kAdapters) names = {kAdapterWeights, kAdapterConfig};
  for (const std::string& companion : CompanionFiles(source_folder)) {
    names.push_back(fs::path(companion).filename());
  }
  for (std::string& name : OldWeights(folder)) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  for (std::string& name : names) name = absl::StrCat(folder, "/", name);
  return names;
}

absl::StatusOr<HfExport> ClaimExport(const std::string& folder, const std::string& source_folder,
                                     ExportedWeights weights, const std::vector<ExportedFile>& files,
                                     std::map<std::string, std::string> others) {
  HfExport target;
  WEFT_RETURN_IF_ERROR(CheckIsNoCheckpoint(folder));
  WEFT_RETURN_IF_ERROR(CheckReplaceable(ExportedFiles(folder, source_folder, weights)));
  WEFT_ASSIGN_OR_RETURN(target.folder, OutputFolder::Claim(folder));
  FileSizes sizes;
  for (const ExportedFile& file : files) sizes.Add(file.layout.file_bytes());
  for (const auto& [name, content] : others) sizes.Add(static_cast<int64_t>(content.size()));
  WEFT_RETURN_IF_ERROR(target.folder->CheckSpace("the export", sizes));
  target.files = std::move(others);
  return target;
}

absl::StatusOr<HfExport> OpenExport(const std::string& folder, const std::string& source_folder,
                                    std::map<std::string, std::string> files, LlamaModel& model,
                                    ExportedWeights weights, DType dtype) {
  absl::StatusOr<HfExport> target = ClaimExport(
      folder, source_folder, weights, FilesOf(WeightsFilesOf(model, weights, dtype)), std::move(files));
  if (!target.ok()) return Annotate(target.status(), absl::StrCat("--export-hf ", folder));
  return target;
}

absl::Status CheckExportIsShared(Bootstrap& bootstrap, const std::string& folder, const HfExport* target,
                                 bool writes, absl::Duration timeout) {
  if (folder.empty()) return absl::OkStatus();
  const bool first = bootstrap.rank() == 0;
  const absl::Status status =
      CheckIsShared(bootstrap, first ? target->folder->Stage() : std::string(), writes, timeout);
  if (first) target->folder->Discard();
  return Annotate(status, absl::StrCat("--export-hf ", folder));
}

absl::Status WriteExport(Bootstrap& bootstrap, const absl::StatusOr<const HfExport*>& target,
                         const std::vector<ExportedFile>& files,
                         absl::FunctionRef<absl::Status(const std::string& staging)> write,
                         absl::Duration timeout) {
  const bool first = bootstrap.rank() == 0;
  // Each phase starts after the one before has succeeded on all ranks.
  const auto run = [&]() -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const std::string staging, Stage(bootstrap, target, files, timeout));
    WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, write(staging), timeout));
    return AgreeOnStatus(bootstrap, first ? Finish(**target, staging, files) : absl::OkStatus(), timeout);
  };
  absl::Status status = run();
  if (first && target.ok()) (*target)->folder->Discard();
  return status;
}

absl::Status ExportHf(Bootstrap& bootstrap, const HfExport* target, LlamaModel& model,
                      const std::vector<ShardView>& shards, ExportedWeights weights, DType dtype, bool writes,
                      absl::Duration timeout) {
  const std::vector<WeightsFile> files = WeightsFilesOf(model, weights, dtype);
  return WriteExport(
      bootstrap, target, FilesOf(files),
      [&](const std::string& staging) {
        return writes ? WriteShards(staging, files, shards) : absl::OkStatus();
      },
      timeout);
}

}  // namespace weft
