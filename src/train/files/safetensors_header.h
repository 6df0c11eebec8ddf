// Parsers of the JSON in a model folder's weights: the header of a safetensors file, and the index of
// several.
//
// They keep only their results, whose number is limited. The text therefore bounds their memory.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include <absl/status/statusor.h>

#include "src/train/files/file_io.h"
#include "weft/train/safetensors.h"

namespace weft {

// Limits of what the parsers accept.
inline constexpr size_t kMaxFileTensors = 200'000;  // In a header or an index.
inline constexpr size_t kMaxTensorDims = 16;
// As JSON, without the quotes. They take a string of 1 MiB with the text up to its value.
inline constexpr size_t kMaxTensorNameBytes = 1'000'000;

// Parses model.safetensors.index.json to the file name of each tensor. `path` goes into messages.
// Errors: kDataLoss (also for a file name that leads to another folder).
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view text,
                                                                         const std::string& path);

// Reads the header of a safetensors file, and parses it with ParseSafetensorsHeader. Errors: kUnavailable,
// kDataLoss.
absl::StatusOr<std::map<std::string, SafetensorsEntry>> ReadSafetensorsHeader(const File& file,
                                                                              const std::string& path);

}  // namespace weft
