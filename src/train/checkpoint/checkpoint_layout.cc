#include "src/train/checkpoint/checkpoint_layout.h"

#include <algorithm>
#include <set>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "src/train/files/json.h"
#include "src/train/files/json_text.h"
#include "src/train/files/safetensors_header.h"
#include "weft/core/status.h"

namespace weft {
namespace {

using Tensors = std::vector<const CheckpointLayout::Tensor*>;

int64_t BytesOf(const CheckpointLayout::Tensor& tensor) {
  return ElementCount(tensor.shape) * static_cast<int64_t>(sizeof(float));
}

// Splits tensors, in their order, into files of at most `max_file_bytes` or of one tensor.
std::vector<Tensors> SplitIntoFiles(const Tensors& tensors, int64_t max_file_bytes) {
  std::vector<Tensors> files;
  int64_t bytes = 0;
  for (const CheckpointLayout::Tensor* tensor : tensors) {
    if (files.empty() || bytes + BytesOf(*tensor) > max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(tensor);
    bytes += BytesOf(*tensor);
  }
  return files;
}

SafetensorsLayout LayoutOf(const Tensors& tensors) {
  std::vector<SafetensorsLayout::Tensor> contents;
  for (const CheckpointLayout::Tensor* tensor : tensors) contents.push_back({tensor->name, tensor->shape});
  return SafetensorsLayout(contents);
}

absl::Status CheckStem(const std::string& stem) {
  const bool plain = !stem.empty() && std::all_of(stem.begin(), stem.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  return plain ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     absl::StrCat("'", stem, "' is not a name for the files of a checkpoint: use ",
                                  "lower-case letters, digits, '_' and '-'"));
}

// OK if readers of safetensors files take the tensor's shape and name.
absl::Status CheckTensor(const CheckpointLayout::Tensor& tensor) {
  const auto refusal = [&](const absl::AlphaNum& property, int64_t limit, const char* remedy) {
    return absl::InvalidArgumentError(absl::StrCat("the tensor '", Excerpt(tensor.name), "' in '",
                                                   tensor.stem, "' has ", property, ", but at most ", limit,
                                                   " are allowed: ", remedy));
  };
  if (tensor.shape.size() > kMaxTensorDims) {
    return refusal(absl::StrCat(tensor.shape.size(), " dims"), kMaxTensorDims,
                   "give the parameter a shape of fewer dims");
  }
  constexpr size_t kQuotes = 2;
  const size_t name_bytes = JsonText(tensor.name).size() - kQuotes;
  if (name_bytes <= kMaxTensorNameBytes) return absl::OkStatus();
  return refusal(absl::StrCat("a name of ", name_bytes, " bytes as JSON"), kMaxTensorNameBytes, "shorten it");
}

}  // namespace

absl::StatusOr<CheckpointLayout> CheckpointLayout::Make(absl::Span<const Tensor> tensors,
                                                        int64_t max_file_bytes) {
  std::vector<std::string> stems;  // In the order of their first tensors.
  std::map<std::string, Tensors> tensors_of;
  std::set<std::pair<std::string, std::string>> names;
  for (const Tensor& tensor : tensors) {
    WEFT_RETURN_IF_ERROR(CheckStem(tensor.stem));
    WEFT_RETURN_IF_ERROR(CheckTensor(tensor));
    if (!names.emplace(tensor.stem, tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("the checkpoint has two arrays named '", tensor.name,
                                                     "' in '", tensor.stem, "': give one a suffix"));
    }
    Tensors& same_stem = tensors_of[tensor.stem];
    if (same_stem.empty()) stems.push_back(tensor.stem);
    same_stem.push_back(&tensor);
  }
  CheckpointLayout layout;
  for (const std::string& stem : stems) {
    WEFT_RETURN_IF_ERROR(layout.AddStem(stem, tensors_of[stem], max_file_bytes));
  }
  return layout;
}

absl::Status CheckpointLayout::AddStem(const std::string& stem, const Tensors& tensors,
                                       int64_t max_file_bytes) {
  const std::vector<Tensors> parts = SplitIntoFiles(tensors, max_file_bytes);
  Json weight_map;
  int64_t total_bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = parts.size() == 1
                                 ? absl::StrCat(stem, ".safetensors")
                                 : absl::StrFormat("%s-%05d-of-%05d.safetensors", stem, i + 1, parts.size());
    if (parts[i].size() > kMaxFileTensors) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' would have ", parts[i].size(), " tensors, but at most ", kMaxFileTensors,
                       " are allowed: lower CheckpointOptions::max_file_bytes, or give some of the arrays "
                       "another CheckpointArrays::file"));
    }
    for (const Tensor* tensor : parts[i]) {
      file_of_[{stem, tensor->name}] = files_.size();
      weight_map[tensor->name] = name;
      total_bytes += BytesOf(*tensor);
    }
    files_.push_back({stem, name, LayoutOf(parts[i])});
  }
  if (parts.size() == 1) return absl::OkStatus();
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  indexes_[absl::StrCat(stem, ".safetensors.index.json")] = JsonText(index, 2) + "\n";
  return absl::OkStatus();
}

FileSizes CheckpointLayout::sizes() const {
  FileSizes sizes;
  for (const File& file : files_) sizes.Add(file.layout.file_bytes());
  for (const auto& [name, text] : indexes_) sizes.Add(static_cast<int64_t>(text.size()));
  return sizes;
}

CheckpointLayout::Place CheckpointLayout::Find(const std::string& stem, const std::string& name,
                                               int64_t element) const {
  const auto file = file_of_.find({stem, name});
  WEFT_CHECK(file != file_of_.end(), "the tensor is not in the layout");
  return {file->second, files_[file->second].layout.OffsetOf(name, element)};
}

}  // namespace weft
