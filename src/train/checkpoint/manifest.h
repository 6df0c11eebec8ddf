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

namespace weft {

inline constexpr const char* kManifestName = "checkpoint.json";
inline constexpr int kCheckpointFormat = 1;

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

std::string FormatManifest(const CheckpointManifest& manifest);

// Checks the hash and all values. `path` goes into messages.
// Errors: kDataLoss (names the fault), kUnimplemented (another format).
absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view text, const std::string& path);

}  // namespace weft
