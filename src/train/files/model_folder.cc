#include "src/train/files/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include "weft/core/status.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<fs::path> Canonical(const std::string& path) {
  std::error_code error;
  fs::path found = fs::canonical(path, error);
  if (error) return ErrnoStatus(error.value(), "open", path);
  return found;
}

// The folder that holds all files of the model in `folder`. REQUIRES: `folder` is canonical.
fs::path StoreOf(const fs::path& folder) {
  const fs::path parent = folder.parent_path();
  return parent.filename() == "snapshots" ? parent.parent_path() : folder;
}

bool IsOfStem(absl::string_view name, absl::string_view stem) {
  if (!absl::ConsumePrefix(&name, stem)) return false;
  return name == ".safetensors" || name == ".safetensors.index.json" ||
         (absl::StartsWith(name, "-") && absl::StrContains(name, "-of-") &&
          absl::EndsWith(name, ".safetensors"));
}

bool IsWithin(const fs::path& file, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first == folder.end();
}

// `problem`: what a folder with a file of the stem has.
absl::Status CheckHasNone(const char* stem, const std::string& folder, absl::string_view problem) {
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (!IsOfStem(entry->path().filename().native(), stem)) continue;
    return absl::InvalidArgumentError(absl::StrCat("'", folder, "' ", problem, ": name another folder"));
  }
  const bool is_new = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !is_new) return ErrnoStatus(error.value(), "list", folder);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<File> OpenModelFile(const std::string& folder, const std::string& name) {
  const std::string path = absl::StrCat(folder, "/", name);
  WEFT_ASSIGN_OR_RETURN(const fs::path target, Canonical(path));
  WEFT_ASSIGN_OR_RETURN(const fs::path root, Canonical(folder));
  if (!IsWithin(target, StoreOf(root))) {
    return absl::PermissionDeniedError(
        absl::StrCat("'", path, "' is a link to '", target.native(),
                     "', outside of the model's folder: put the file itself there"));
  }
  return File::OpenForReading(path);
}

absl::StatusOr<std::string> ReadModelFile(const std::string& folder, const std::string& name,
                                          int64_t max_bytes) {
  WEFT_ASSIGN_OR_RETURN(const File file, OpenModelFile(folder, name));
  return file.ReadAll(max_bytes);
}

bool IsWeightsFile(const std::string& name) {
  return IsOfStem(name, kModelFiles) || IsOfStem(name, kIndexerFiles) || name == kIndexerConfig ||
         IsOfStem(name, kAdapterFiles) || name == kAdapterConfig;
}

absl::Status CheckHasNoModel(const std::string& folder) {
  return CheckHasNone(kModelFiles, folder, "has the weights of a model, which adapters would replace");
}

absl::Status CheckHasNoAdapters(const std::string& folder) {
  return CheckHasNone(kAdapterFiles, folder, "has the weights of adapters, which a model would replace");
}

}  // namespace weft
