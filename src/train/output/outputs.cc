#include "src/train/output/outputs.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>
#include <sys/stat.h>
#include <system_error>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "src/train/checkpoint/checkpoint_folder.h"
#include "src/train/config/flag_error.h"
#include "src/train/data/data_files.h"
#include "src/train/files/file_io.h"
#include "src/train/files/model_folder.h"
#include "src/train/output/export_hf.h"
#include "src/train/output/resolved_config.h"
#include "weft/core/status.h"
#include "weft/train/metrics.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// The device and inode of the file that a path leads to.
using FileId = std::pair<dev_t, ino_t>;

struct InputFile {
  const char* flag;
  std::string path;
};

struct OutputFile {
  const char* flag;
  std::string path;
  // True: the run truncates the file, also through a link. False: the run renames a new file to the path; if
  // the path was a link, the link's target stays unchanged.
  bool in_place;
};

std::optional<FileId> IdOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return FileId{info.st_dev, info.st_ino};
}

// The absolute path without links, `.` and `..`. Its last parts need not exist.
std::string Resolved(const fs::path& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  const fs::path resolved = fs::weakly_canonical(absolute, error);
  const fs::path& found = error ? absolute : resolved;
  // "folder/new/" and "folder/new" are one.
  return (found.has_filename() ? found : found.parent_path()).lexically_normal();
}

// The directory entry that the path names: as Resolved, but a link in the last part is not followed.
std::string EntryOf(const fs::path& path) {
  return fs::path(Resolved(path.parent_path().empty() ? fs::path(".") : path.parent_path())) /
         path.filename();
}

std::vector<OutputFile> OutputsOf(const TrainConfig& config) {
  std::vector<OutputFile> outputs;
  if (const std::string& metrics = config.output.metrics_file; !metrics.empty()) {
    outputs.push_back({"metrics", metrics, /*in_place=*/true});
    for (const auto& path : {ConfigPathBeside(metrics), FlagsPathBeside(metrics)}) {
      if (path) outputs.push_back({"metrics", *path, /*in_place=*/false});
    }
  }
  if (const std::string& trace = config.output.trace_file; !trace.empty())
    outputs.push_back({"trace", trace, /*in_place=*/false});
  if (const std::string& folder = config.output.export_folder; !folder.empty()) {
    for (const std::string& path :
         ExportedFiles(folder, config.model.hf_folder(), ExportedWeightsOf(config))) {
      outputs.push_back({"export-hf", path, /*in_place=*/false});
    }
  }
  return outputs;
}

// The files of a corpus and their masks.
void AddFiles(const char* flag, const Corpus& corpus, std::vector<InputFile>& files) {
  for (const Corpus::Source& source : corpus.sources()) {
    files.push_back({flag, source.name});
    if (corpus.has_loss_mask()) files.push_back({flag, MaskOf(source.name)});
  }
}

std::vector<InputFile> InputsOf(const TrainConfig& config, const TrainInputs& inputs) {
  std::vector<InputFile> files;
  if (!config.data.paths.empty()) AddFiles("--data", inputs.corpus, files);
  if (inputs.eval_corpus) AddFiles("--eval-data", *inputs.eval_corpus, files);
  if (!config.model.hf_model.empty()) {
    std::set<std::string> paths = {absl::StrCat(config.model.hf_folder(), "/", kConfigFile)};
    if (inputs.weights) {
      for (const auto& [name, entry] : inputs.weights->entries()) paths.insert(entry.file);
    }
    if (inputs.indexer_weights) {
      paths.insert(absl::StrCat(config.model.hf_folder(), "/", kIndexerConfig));
      for (const auto& [name, entry] : inputs.indexer_weights->entries()) paths.insert(entry.file);
    }
    for (const std::string& path : CompanionFiles(config.model.hf_folder())) paths.insert(path);
    for (const std::string& path : paths) files.push_back({"--hf-model", path});
  }
  if (inputs.adapter_weights) {
    files.push_back({"--lora-adapter", absl::StrCat(config.lora.adapter, "/", kAdapterConfig)});
    for (const auto& [name, entry] : inputs.adapter_weights->entries()) {
      files.push_back({"--lora-adapter", entry.file});
    }
  }
  if (!config.config_file.empty()) files.push_back({"--config", config.config_file});
  return files;
}

// REQUIRES: both paths lead to one file.
bool Replaces(const OutputFile& output, const InputFile& input) {
  if (output.in_place) return true;
  const std::string entry = EntryOf(output.path);
  return entry == EntryOf(input.path) || entry == Resolved(input.path);
}

absl::Status Collision(const OutputFile& output, const absl::AlphaNum& what) {
  return BadFlag(output.flag, output.path, absl::StrCat(what, "; name another one"));
}

absl::Status CheckNoInputReplaced(const std::vector<OutputFile>& outputs,
                                  const std::vector<InputFile>& inputs) {
  std::vector<std::optional<FileId>> ids;
  ids.reserve(outputs.size());
  for (const OutputFile& output : outputs) ids.push_back(IdOf(output.path));
  for (const InputFile& input : inputs) {
    const std::optional<FileId> id = IdOf(input.path);
    for (size_t i = 0; i < outputs.size(); ++i) {
      // An output that does not exist yet replaces nothing.
      if (!id || id != ids[i] || !Replaces(outputs[i], input)) continue;
      return Collision(outputs[i], absl::StrCat("is a file that ", input.flag, " reads"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOutputsDiffer(const std::vector<OutputFile>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const bool same = outputs[j].in_place ? Resolved(outputs[i].path) == Resolved(outputs[j].path)
                                            : EntryOf(outputs[i].path) == EntryOf(outputs[j].path);
      if (!same) continue;
      return Collision(outputs[i], absl::StrCat("is a file that --", outputs[j].flag, " writes"));
    }
  }
  return absl::OkStatus();
}

// True if ExpandDataPaths of the folder would find a file of this path. Both are resolved.
bool IsDataOf(const fs::path& folder, const fs::path& path) {
  const fs::path below = path.lexically_relative(folder);
  return !below.empty() && below.begin()->string() != ".." &&
         std::none_of(below.begin(), below.end(),
                      [](const fs::path& part) { return part != "." && IsSkippedAsData(part.string()); });
}

// A resumed run would read the outputs of the first one as data.
absl::Status CheckOutsideData(const TrainConfig& config, std::vector<OutputFile> outputs) {
  const std::pair<const char*, const std::string&> folders[] = {
      {"checkpoint-dir", config.checkpoint.folder},
      {"tensorboard", config.output.tensorboard_folder},
      {"dump-folder", config.output.dump_folder}};
  for (const auto& [flag, folder] : folders) {
    if (!folder.empty()) outputs.push_back({flag, folder, /*in_place=*/false});
  }
  const auto check = [&](const char* flag, const std::vector<std::string>& paths) -> absl::Status {
    for (const std::string& path : paths) {
      std::error_code ignored;
      if (!fs::is_directory(path, ignored)) continue;
      for (const OutputFile& output : outputs) {
        if (!IsDataOf(Resolved(path), Resolved(output.path))) continue;
        return Collision(output,
                         absl::StrCat("lies in the folder ", path, ", of which ", flag, " reads all files"));
      }
    }
    return absl::OkStatus();
  };
  WEFT_RETURN_IF_ERROR(check("--data", config.data.paths));
  return check("--eval-data", config.eval.paths);
}

// True if a checkpoint of the run may get this path, which is resolved.
bool IsCheckpointPlace(const std::string& checkpoints, const fs::path& path) {
  return path.parent_path() == Resolved(checkpoints) && IsCheckpointName(path.filename());
}

absl::Status CheckCollisions(const TrainConfig& config, const TrainInputs& inputs) {
  const std::string& exported = config.output.export_folder;
  const std::string& source = config.model.hf_folder();
  if (!exported.empty() && !source.empty() && Resolved(exported) == Resolved(source)) {
    return BadFlag("export-hf", exported, "is the folder of --hf-model; name another one");
  }
  const std::string& checkpoints = config.checkpoint.folder;
  if (!exported.empty() && !checkpoints.empty() && Resolved(exported) == Resolved(checkpoints)) {
    return BadFlag("export-hf", exported, "is the folder of --checkpoint-dir; name another one");
  }
  if (!exported.empty() && !checkpoints.empty() && IsCheckpointPlace(checkpoints, Resolved(exported))) {
    return BadFlag("export-hf", exported, "is the place of a checkpoint; name another one");
  }
  if (!exported.empty()) {
    const bool has_adapters = ExportedWeightsOf(config) == ExportedWeights::kAdapters;
    WEFT_RETURN_IF_ERROR(
        Annotate(has_adapters ? CheckHasNoModel(exported) : CheckHasNoAdapters(exported), "--export-hf"));
  }
  const std::vector<OutputFile> outputs = OutputsOf(config);
  WEFT_RETURN_IF_ERROR(CheckOutputsDiffer(outputs));
  WEFT_RETURN_IF_ERROR(CheckNoInputReplaced(outputs, InputsOf(config, inputs)));
  return CheckOutsideData(config, outputs);
}

// Also makes a file beside `path` and removes it.
absl::Status CheckWritable(const std::string& path) {
  WEFT_RETURN_IF_ERROR(CheckReplaceable(path));
  const std::string probe = absl::StrCat(path, ".partial-", UniqueSuffix());
  WEFT_RETURN_IF_ERROR(File::CreateNew(probe, path).status());
  unlink(probe.c_str());
  return absl::OkStatus();
}

// Opens the metrics file, if it exists. It is not created and removed: another run may have opened it in
// between, and would write its metrics to a file without a name.
absl::Status CheckMetrics(const std::string& path, bool resumes) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return CheckWritable(path);
  if (resumes && S_ISREG(info.st_mode)) return File::OpenForUpdate(path).status();  // A resumed run appends.
  return MetricsFile::Create(path).status();
}

// Refuses to replace a file beside the metrics that no run has written. `beginning`: of those of runs.
absl::Status CheckWrittenByARun(const std::string& metrics_file, const std::string& path,
                                absl::string_view beginning) {
  const absl::StatusOr<File> file = File::OpenForReading(path);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(file.status());
  WEFT_ASSIGN_OR_RETURN(const int64_t bytes, file->Size());
  std::string found(std::min(static_cast<size_t>(bytes), beginning.size()), '\0');
  WEFT_RETURN_IF_ERROR(file->ReadAt(0, found.data(), found.size()));
  if (found.empty() || found == beginning) return absl::OkStatus();
  return BadFlag("metrics", metrics_file,
                 absl::StrCat("the run would save its configuration in '", path,
                              "', which is a file that no run has written: move that file away, or name "
                              "other metrics"));
}

absl::Status CheckConfigBeside(const TrainConfig& config) {
  const std::string& metrics = config.output.metrics_file;
  if (const auto resolved = ConfigPathBeside(metrics)) {
    WEFT_RETURN_IF_ERROR(CheckWritable(*resolved));
    WEFT_RETURN_IF_ERROR(CheckWrittenByARun(metrics, *resolved, ToAbsl(kBeginningOfJson)));
  }
  const std::string& flags = config.given_flags;
  if (const auto path = FlagsPathBeside(metrics)) {
    WEFT_RETURN_IF_ERROR(CheckWritable(*path));
    if (flags.empty()) return absl::OkStatus();  // The run does not write it.
    WEFT_RETURN_IF_ERROR(CheckWrittenByARun(metrics, *path, flags.substr(0, flags.find('\n'))));
  }
  return absl::OkStatus();
}

// Nothing for a device, beside which there is no place. Another suffix than that of a metrics file stays, as
// it may be a part of the name: "lr0.1" and "lr0.01" are two runs.
std::optional<std::string> PathBeside(const std::string& metrics_file, const char* extension) {
  struct stat info {};
  const bool is_device =
      stat(metrics_file.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
  if (metrics_file == "/dev/stdout" || is_device) return std::nullopt;
  fs::path path = metrics_file;
  if (path.extension() == ".jsonl" || path.extension() == ".json") path.replace_extension();
  return path.concat(extension);
}

// A failed run creates the folder if it is missing.
absl::Status CheckDumpFolder(const std::string& path) {
  struct stat info {};
  const bool found = stat(path.c_str(), &info) == 0;
  if (found ? S_ISDIR(info.st_mode) : errno != ENOTDIR) return absl::OkStatus();
  return BadFlag("dump-folder", path,
                 absl::StrCat(found ? "is not a folder" : "lies below a file", ": name a folder"));
}

}  // namespace

absl::Status CheckOutputs(const TrainConfig& config, const TrainInputs& inputs) {
  WEFT_RETURN_IF_ERROR(CheckCollisions(config, inputs));
  WEFT_RETURN_IF_ERROR(CheckDumpFolder(config.output.dump_folder));
  const std::string& trace = config.output.trace_file;
  if (!trace.empty()) WEFT_RETURN_IF_ERROR(NameFlag("trace", CheckWritable(trace)));
  const std::string& metrics = config.output.metrics_file;
  if (metrics.empty()) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(NameFlag("metrics", CheckMetrics(metrics, !config.checkpoint.resume.empty())));
  return NameFlag("metrics", CheckConfigBeside(config));
}

std::optional<std::string> ConfigPathBeside(const std::string& metrics_file) {
  return PathBeside(metrics_file, ".config.json");
}

std::optional<std::string> FlagsPathBeside(const std::string& metrics_file) {
  return PathBeside(metrics_file, ".config.toml");
}

}  // namespace weft
