// Files of a checkpoint's arrays: which file holds which tensor, and where. Pure: every rank computes the
// same layout from the same tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "src/train/files/output_folder.h"
#include "weft/core/tensor_view.h"
#include "weft/train/safetensors.h"

namespace weft {

class CheckpointLayout {
 public:
  struct Tensor {
    std::string stem;  // Stem of its files, such as "model".
    std::string name;
    Shape shape;
  };
  struct File {
    std::string stem;
    std::string name;
    SafetensorsLayout layout;
  };
  // Position of an element.
  struct Place {
    size_t file;     // Index in files().
    int64_t offset;  // In bytes.
  };

  // Tensors of one stem fill files in their order; a file takes no further tensor if it would exceed
  // `max_file_bytes`. Errors: kInvalidArgument (two tensors of one stem have the same name; a stem that is
  // not a file name; a tensor or a file beyond the limits of safetensors_header.h).
  static absl::StatusOr<CheckpointLayout> Make(absl::Span<const Tensor> tensors, int64_t max_file_bytes);

  const std::vector<File>& files() const { return files_; }
  // Index files by name, of the stems that have several files.
  const std::map<std::string, std::string>& indexes() const { return indexes_; }
  FileSizes sizes() const;  // Includes the indexes.
  // REQUIRES: the layout has the tensor.
  Place Find(const std::string& stem, const std::string& name, int64_t element) const;

 private:
  absl::Status AddStem(const std::string& stem, const std::vector<const Tensor*>& tensors,
                       int64_t max_file_bytes);

  std::vector<File> files_;
  std::map<std::string, std::string> indexes_;
  std::map<std::pair<std::string, std::string>, size_t> file_of_;  // By stem and tensor.
};

}  // namespace weft
