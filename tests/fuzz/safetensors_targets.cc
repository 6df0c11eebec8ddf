#include <string>

#include "src/train/files/safetensors_header.h"
#include "tests/fuzz/targets.h"
#include "weft/core/status.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

constexpr size_t kLengthBytes = 8;

}  // namespace

int FuzzSafetensorsHeader(const uint8_t* data, size_t size) {
  // The header ends at the last brace, so that most of an input is JSON.
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t brace = input.rfind('}');
  const std::string_view header = input.substr(0, brace == std::string_view::npos ? size : brace + 1);
  const auto file_bytes = static_cast<int64_t>(kLengthBytes + size);
  const auto entries = ParseSafetensorsHeader(header, "file", file_bytes);
  if (!entries.ok()) return 0;
  int64_t end = static_cast<int64_t>(kLengthBytes + header.size());
  for (const auto& [name, entry] : *entries) {
    WEFT_CHECK(entry.offset >= static_cast<int64_t>(kLengthBytes + header.size()) &&
                   entry.offset + entry.bytes <= file_bytes,
               "a tensor lies outside of the data");
    end += entry.bytes;
  }
  WEFT_CHECK(end == file_bytes, "the tensors do not cover the data");
  return 0;
}

int FuzzSafetensorsIndex(const uint8_t* data, size_t size) {
  const auto files = ParseSafetensorsIndex({reinterpret_cast<const char*>(data), size}, "index");
  if (!files.ok()) return 0;
  for (const auto& [name, file] : *files) {
    WEFT_CHECK(!file.empty() && file != ".." && file.find('/') == std::string::npos &&
                   file.find('\0') == std::string::npos,
               "the index leads to another folder");
  }
  return 0;
}

}  // namespace weft
