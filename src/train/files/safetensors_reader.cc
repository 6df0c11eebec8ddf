#include <algorithm>
#include <optional>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"
#include "src/train/files/folder_entries.h"
#include "src/train/files/json_text.h"
#include "src/train/files/model_folder.h"
#include "src/train/files/safetensors_header.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

using Entries = std::map<std::string, SafetensorsEntry>;

constexpr int64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // The limit of the format.
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr int64_t kConvertElements = 1 << 20;  // 16-bit elements per read.

absl::Status Damaged(const std::string& path, const absl::AlphaNum& what) {
  return absl::DataLossError(absl::StrCat("'", path, "': ", what));
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

absl::StatusOr<Entries> ReadHeader(const std::string& folder, const std::string& name) {
  WEFT_ASSIGN_OR_RETURN(const File file, OpenModelFile(folder, name));
  return ReadSafetensorsHeader(file, absl::StrCat(folder, "/", name));
}

absl::StatusOr<Entries> ReadIndexedFolder(const std::string& folder, const std::string& index_name) {
  const std::string index_path = absl::StrCat(folder, "/", index_name);
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadModelFile(folder, index_name, kMaxIndexBytes));
  WEFT_ASSIGN_OR_RETURN(const auto index, ParseSafetensorsIndex(text, index_path));
  std::map<std::string, Entries> headers;
  Entries entries;
  for (const auto& [name, file] : index) {
    auto header = headers.find(file);
    if (header == headers.end()) {
      absl::StatusOr<Entries> read = ReadHeader(folder, file);
      if (absl::IsNotFound(read.status())) {
        return absl::NotFoundError(absl::StrCat("'", folder, "/", file, "' is missing, but '", index_path,
                                                "' names it: download it again"));
      }
      WEFT_RETURN_IF_ERROR(read.status());
      header = headers.emplace(file, *std::move(read)).first;
    }
    const auto entry = header->second.find(name);
    if (entry == header->second.end()) {
      return Damaged(index_path, absl::StrCat("names '", Excerpt(file), "' for tensor '", Excerpt(name),
                                              "', but that file does not have it"));
    }
    entries.insert(*entry);
  }
  return entries;
}

absl::Status NoWeights(const std::string& folder, const std::string& stem) {
  const std::string pickled = absl::StrCat(stem == kModelFiles ? "pytorch_model" : stem, ".bin");
  for (const std::string& name : {pickled, pickled + ".index.json"}) {
    if (!Exists(InFolder(folder, name))) continue;
    return absl::NotFoundError(absl::StrCat(
        "'", folder, "' has ", name, ", but weft reads safetensors only: ",
        "load the model with transformers, save it with save_pretrained, ", "and give the new folder"));
  }
  const std::string file = stem + ".safetensors";
  return absl::NotFoundError(absl::StrCat("'", folder, "' has neither ", file, " nor ", file,
                                          ".index.json: is it a Hugging Face model folder with safetensors "
                                          "weights?"));
}

}  // namespace

absl::StatusOr<Entries> ReadSafetensorsHeader(const File& file, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const int64_t file_bytes, file.Size());
  uint64_t header_bytes = 0;
  if (file_bytes < kLengthBytes) {
    return Damaged(path, absl::StrCat("has only ", file_bytes,
                                      " bytes, so it is not a safetensors file; download it again"));
  }
  WEFT_RETURN_IF_ERROR(file.ReadAt(0, &header_bytes, sizeof(header_bytes)));
  if (header_bytes > static_cast<uint64_t>(file_bytes - kLengthBytes)) {
    return Damaged(
        path, absl::StrCat("announces a header of ", header_bytes, " bytes, but the file has ", file_bytes,
                           ": it is truncated or not a safetensors file; download it again"));
  }
  if (header_bytes > kMaxHeaderBytes) {
    return Damaged(path,
                   absl::StrCat("announces a header of ", header_bytes, " bytes, but the format allows ",
                                kMaxHeaderBytes, ": it is not a safetensors file; download it again"));
  }
  std::string header(header_bytes, '\0');
  WEFT_RETURN_IF_ERROR(file.ReadAt(kLengthBytes, header.data(), header.size()));
  return ParseSafetensorsHeader(header, path, file_bytes);
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& folder,
                                                          const std::string& stem) {
  SafetensorsReader reader;
  reader.folder_ = folder;
  const std::string file = stem + ".safetensors";
  const std::string index = file + ".index.json";
  absl::StatusOr<Entries> entries = ReadHeader(folder, file);
  if (absl::IsNotFound(entries.status())) {
    entries = ReadIndexedFolder(folder, index);
    if (absl::IsNotFound(entries.status()) && absl::IsNotFound(OpenModelFile(folder, index).status())) {
      return NoWeights(folder, stem);
    }
  }
  WEFT_ASSIGN_OR_RETURN(reader.entries_, std::move(entries));
  return reader;
}

absl::StatusOr<Shape> SafetensorsReader::ShapeOf(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second.shape;
  return absl::NotFoundError(
      absl::StrCat("no safetensors file of '", folder_, "' has the tensor '", name, "'"));
}

absl::Status SafetensorsReader::Check(const std::string& name, const Shape& shape) const {
  WEFT_RETURN_IF_ERROR(ShapeOf(name).status());
  const SafetensorsEntry& entry = entries_.at(name);
  if (!WeightDType(entry.dtype)) {
    return Damaged(entry.file, absl::StrCat("tensor '", Excerpt(name), "' is ", entry.dtype,
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
