// checkpoint.json: the description of a checkpoint, and its text.
//
// The last key of the text is the hash of all bytes before it.
//
// Pure. Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

#include "src/train/checkpoint/file_range.h"
#include "weft/train/checkpoint.h"

namespace weft {

inline constexpr const char* kManifestName = "checkpoint.json";
inline constexpr int kCheckpointFormat = 1;
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

struct CheckpointManifest {
  struct File {
    std::string stem;  // As in CheckpointLayout; empty for a file without arrays.
    int64_t bytes = 0;
    std::vector<FileRange> ranges;
  };
  int64_t step = 0;
  std::map<std::string, int64_t> counts;
  std::map<std::string, int64_t> counts_of_parameters;
  std::map<std::string, std::string> properties;
  std::map<std::string, File> files;  // By name, without checkpoint.json itself.
};

// Checks that a manifest can have the step, the files' names, the counts and the properties of a state.
// Errors: kInvalidArgument (names the member of CheckpointState and the key).
absl::Status CheckState(const CheckpointState& state);

std::string FormatManifest(const CheckpointManifest& manifest);

// Checks the size, the hash and all values. `path` goes into messages.
// Errors: kDataLoss (names the fault), kUnimplemented (another format).
absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view text, const std::string& path);

}  // namespace weft
