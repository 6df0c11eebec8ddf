#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include <absl/strings/str_cat.h>
#include <nlohmann/json.hpp>

#include "src/train/files/file_io.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

using Json = nlohmann::json;
using Entries = std::map<std::string, SafetensorsEntry>;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // The limit of the format.
constexpr int64_t kConvertElements = 1 << 20;     // 16-bit elements per read.

absl::Status Damaged(const std::string& path, const absl::AlphaNum& what) {
  return absl::DataLossError(absl::StrCat("'", path, "': ", what));
}

// Bytes per element of one of the format's dtypes; nullopt for an unknown dtype.
std::optional<int64_t> ElementBytes(const std::string& dtype) {
  static constexpr std::array<std::pair<std::string_view, int64_t>, 14> kSizes = {{{"F64", 8},
                                                                                   {"I64", 8},
                                                                                   {"U64", 8},
                                                                                   {"F32", 4},
                                                                                   {"I32", 4},
                                                                                   {"U32", 4},
                                                                                   {"F16", 2},
                                                                                   {"BF16", 2},
                                                                                   {"I16", 2},
                                                                                   {"U16", 2},
                                                                                   {"F8_E4M3", 1},
                                                                                   {"F8_E5M2", 1},
                                                                                   {"I8", 1},
                                                                                   {"U8", 1}}};
  for (const auto& [name, bytes] : kSizes) {
    if (name == dtype) {
      return bytes;
    }
  }
  return dtype == "BOOL" ? std::optional<int64_t>(1) : std::nullopt;
}

// The dtype of weights; nullopt for a dtype that weights must not have.
std::optional<DType> WeightDType(const std::string& dtype) {
  if (dtype == "F32") {
    return DType::kF32;
  }
  if (dtype == "F16") {
    return DType::kF16;
  }
  return dtype == "BF16" ? std::optional(DType::kBF16) : std::nullopt;
}

bool IsListOfSizes(const Json& value) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const Json& size) { return size.is_number_unsigned(); });
}

// Bytes of a tensor; nullopt if a size is negative or the product overflows.
std::optional<int64_t> CheckedBytes(const Shape& shape, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name, const Json& value,
                                            const std::string& path, int64_t data_start, int64_t file_bytes) {
  const auto damaged = [&](const absl::AlphaNum& what) {
    return Damaged(path, absl::StrCat("tensor '", name, "' ", what));
  };
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
      !value.contains("shape") || !IsListOfSizes(value["shape"]) || !value.contains("data_offsets") ||
      !IsListOfSizes(value["data_offsets"]) || value["data_offsets"].size() != 2) {
    return damaged("lacks a well-formed dtype, shape or data_offsets");
  }
  SafetensorsEntry entry{path, value["dtype"], {}, 0, 0};
  for (const Json& size : value["shape"]) {
    entry.shape.push_back(size.get<int64_t>());
  }
  const std::optional<int64_t> element_bytes = ElementBytes(entry.dtype);
  if (!element_bytes) {
    return damaged(absl::StrCat("has the unknown dtype '", entry.dtype, "'"));
  }
  const auto begin = value["data_offsets"][0].get<uint64_t>();
  const auto end = value["data_offsets"][1].get<uint64_t>();
  const auto data_bytes = static_cast<uint64_t>(file_bytes - data_start);
  if (begin > end || end > data_bytes) {
    return damaged(absl::StrCat("lies at bytes ", begin, " to ", end, ", but the file has ", data_bytes,
                                " bytes of data: it is truncated or damaged; download it again"));
  }
  entry.offset = data_start + static_cast<int64_t>(begin);
  entry.bytes = static_cast<int64_t>(end - begin);
  if (CheckedBytes(entry.shape, *element_bytes) != entry.bytes) {
    return damaged(absl::StrCat("of shape ", ToString(entry.shape), " and dtype ", entry.dtype, " has ",
                                entry.bytes, " bytes, which do not fit its shape"));
  }
  return entry;
}

absl::Status CheckOverlaps(const Entries& entries, const std::string& path) {
  std::vector<std::pair<const std::string*, const SafetensorsEntry*>> by_offset;
  for (const auto& [name, entry] : entries) {
    if (entry.bytes > 0) {
      by_offset.emplace_back(&name, &entry);
    }
  }
  std::sort(by_offset.begin(), by_offset.end(),
            [](const auto& a, const auto& b) { return a.second->offset < b.second->offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const auto& [previous_name, previous] = by_offset[i - 1];
    const auto& [name, entry] = by_offset[i];
    if (previous->offset + previous->bytes > entry->offset) {
      return Damaged(path, absl::StrCat("tensors '", *previous_name, "' and '", *name, "' overlap"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Entries> ReadHeader(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const File file, File::OpenForReading(path));
  WEFT_ASSIGN_OR_RETURN(const int64_t file_bytes, file.Size());
  uint64_t header_bytes = 0;
  if (file_bytes < kLengthBytes) {
    return Damaged(path, absl::StrCat("has only ", file_bytes,
                                      " bytes, so it is not a safetensors file; download it again"));
  }
  WEFT_RETURN_IF_ERROR(file.ReadAt(0, &header_bytes, sizeof(header_bytes)));
  if (header_bytes > static_cast<uint64_t>(std::min(file_bytes - kLengthBytes, kMaxHeaderBytes))) {
    return Damaged(
        path, absl::StrCat("announces a header of ", header_bytes, " bytes, but the file has ", file_bytes,
                           ": it is truncated or not a safetensors file; download it again"));
  }
  std::string header(header_bytes, '\0');
  WEFT_RETURN_IF_ERROR(file.ReadAt(kLengthBytes, header.data(), header.size()));
  return ParseSafetensorsHeader(header, path, file_bytes);
}

// The file name of each tensor, from model.safetensors.index.json.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  const Json index = Json::parse(text, nullptr, false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return Damaged(path, "is not a JSON object with a weight_map");
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos) {
      return Damaged(path, absl::StrCat("weight_map of '", name, "' is not a file name"));
    }
    files[name] = file;
  }
  return files;
}

absl::StatusOr<Entries> ReadIndexedFolder(const std::string& folder, const std::string& index_path) {
  WEFT_ASSIGN_OR_RETURN(const auto index, ReadIndex(index_path));
  std::map<std::string, Entries> headers;
  Entries entries;
  for (const auto& [name, file] : index) {
    const std::string path = absl::StrCat(folder, "/", file);
    auto header = headers.find(path);
    if (header == headers.end()) {
      WEFT_ASSIGN_OR_RETURN(Entries read, ReadHeader(path));
      header = headers.emplace(path, std::move(read)).first;
    }
    const auto entry = header->second.find(name);
    if (entry == header->second.end()) {
      return Damaged(index_path, absl::StrCat("names '", file, "' for tensor '", name,
                                              "', but that file does not have it"));
    }
    entries.insert(*entry);
  }
  return entries;
}

}  // namespace

absl::StatusOr<Entries> ParseSafetensorsHeader(std::string_view header, const std::string& path,
                                               int64_t file_bytes) {
  const Json json = Json::parse(header, nullptr, false);
  if (!json.is_object()) {
    return Damaged(path,
                   "has a header that is not a JSON object: the file is damaged or not a safetensors file");
  }
  const int64_t data_start = kLengthBytes + static_cast<int64_t>(header.size());
  Entries entries;
  for (const auto& [name, value] : json.items()) {
    if (name != "__metadata__") {
      WEFT_ASSIGN_OR_RETURN(entries[name], ParseEntry(name, value, path, data_start, file_bytes));
    }
  }
  WEFT_RETURN_IF_ERROR(CheckOverlaps(entries, path));
  return entries;
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& folder) {
  SafetensorsReader reader;
  const std::string single = absl::StrCat(folder, "/model.safetensors");
  absl::StatusOr<Entries> entries = ReadHeader(single);
  if (absl::IsNotFound(entries.status())) {
    const std::string index = absl::StrCat(folder, "/model.safetensors.index.json");
    entries = ReadIndexedFolder(folder, index);
    if (absl::IsNotFound(entries.status()) && !File::OpenForReading(index).ok()) {
      return absl::NotFoundError(
          absl::StrCat("'", folder,
                       "' has neither model.safetensors nor model.safetensors.index.json: is it a "
                       "Hugging Face model folder with safetensors weights?"));
    }
  }
  WEFT_ASSIGN_OR_RETURN(reader.entries_, std::move(entries));
  return reader;
}

absl::Status SafetensorsReader::Check(const std::string& name, const Shape& shape) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("no safetensors file of the folder has the tensor '", name, "'"));
  }
  const SafetensorsEntry& entry = found->second;
  if (!WeightDType(entry.dtype)) {
    return Damaged(entry.file, absl::StrCat("tensor '", name, "' is ", entry.dtype,
                                            "; weights must be F32, F16 or BF16"));
  }
  if (entry.shape != shape) {
    return Damaged(entry.file, absl::StrCat("tensor '", name, "' has shape ", ToString(entry.shape),
                                            ", but by config.json it must be ", ToString(shape)));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsReader::Read(const std::string& name, int64_t first, absl::Span<float> out) const {
  const auto found = entries_.find(name);
  WEFT_CHECK(found != entries_.end(), "read of a tensor that was not checked");
  const SafetensorsEntry& entry = found->second;
  const std::optional<DType> dtype = WeightDType(entry.dtype);
  WEFT_CHECK(dtype.has_value(), "read of a tensor that was not checked");
  const auto element_bytes = static_cast<int64_t>(SizeOf(*dtype));
  const auto count = static_cast<int64_t>(out.size());
  WEFT_CHECK(first >= 0 && (first + count) * element_bytes <= entry.bytes, "read past the end of a tensor");
  WEFT_ASSIGN_OR_RETURN(const File file, File::OpenForReading(entry.file));
  const int64_t offset = entry.offset + first * element_bytes;
  if (*dtype == DType::kF32) {
    return file.ReadAt(offset, out.data(), out.size() * sizeof(float));
  }
  std::vector<uint16_t> narrow(static_cast<size_t>(std::min(count, kConvertElements)));
  for (int64_t done = 0; done < count; done += kConvertElements) {
    const int64_t part = std::min(kConvertElements, count - done);
    WEFT_RETURN_IF_ERROR(
        file.ReadAt(offset + done * element_bytes, narrow.data(), static_cast<size_t>(part * element_bytes)));
    ConvertRun(narrow.data(), *dtype, out.data() + done, DType::kF32, part);
  }
  return absl::OkStatus();
}

}  // namespace weft
