// Tensors in the safetensors format: 8 bytes of header length (little-endian), a JSON header that maps names
// to dtype, shape and byte range, then the data (https://huggingface.co/docs/safetensors). Any range of
// elements can be read or written alone, so that each rank touches only its part.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/core/dtype.h"
#include "weft/core/tensor_view.h"

namespace weft {

struct SafetensorsEntry {
  std::string file;   // Path of the file that holds it.
  std::string dtype;  // As the format names it: "F32", "BF16", "I64", ….
  Shape shape;        // Row-major.
  int64_t offset;     // Of the first byte, in the file.
  int64_t bytes;
};

// A header's entries, checked: sizes that agree with shapes, ranges inside the file that do not overlap.
// `path` is for messages and for the entries; `file_bytes` is the whole file's size. Errors: kDataLoss (names
// file, tensor and what is wrong).
absl::StatusOr<std::map<std::string, SafetensorsEntry>> ParseSafetensorsHeader(std::string_view header,
                                                                               const std::string& path,
                                                                               int64_t file_bytes);

// The weights of a model folder: model.safetensors, or the files that model.safetensors.index.json names.
//
// Thread safety: const members may be called from several threads.
class SafetensorsReader {
 public:
  // Reads headers only. Errors: kNotFound, kPermissionDenied, kDataLoss (a file cut off, a tensor that the
  // index places in a file which has it not, …).
  static absl::StatusOr<SafetensorsReader> Open(const std::string& folder);

  // Tensors by name.
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }

  // Whether the tensor is there with this shape, and floating-point of 16 or 32 bits. Errors: kNotFound,
  // kDataLoss (names tensor, file, what it is and what it should be).
  absl::Status Check(const std::string& name, const Shape& shape) const;

  // Reads elements [first, first + out.size()) in row-major order as fp32, from F32, F16 or BF16. Check must
  // hold.
  absl::Status Read(const std::string& name, int64_t first, absl::Span<float> out) const;

 private:
  std::map<std::string, SafetensorsEntry> entries_;
};

// The plan of a file of fp32 tensors. Pure: every rank makes the same one.
class SafetensorsLayout {
 public:
  struct Tensor {
    std::string name;
    Shape shape;
  };
  // Tensors lie in the order given. Names must differ.
  explicit SafetensorsLayout(absl::Span<const Tensor> tensors);

  // The length field and the JSON, padded so that data starts at a multiple of 64.
  const std::string& header() const { return header_; }
  int64_t file_bytes() const { return file_bytes_; }
  // Where element `element` of a tensor lies in the file.
  int64_t OffsetOf(const std::string& name, int64_t element) const;

 private:
  std::map<std::string, int64_t> offsets_;
  std::string header_;
  int64_t file_bytes_ = 0;
};

// A safetensors file that several ranks write together: "<path>.partial" until it is complete, then renamed.
//
// Collective: one rank calls Create; when it has returned, any rank may open the file and write its ranges;
// when all are
//   closed, one rank calls Commit. A writer that is not committed leaves the partial file: Discard removes
//   it.
class SafetensorsWriter {
 public:
  // Makes the partial file at its full size, with its header. Errors: kNotFound, kPermissionDenied,
  // kResourceExhausted.
  static absl::Status Create(const std::string& path, const SafetensorsLayout& layout);
  static absl::Status Commit(const std::string& path);
  static void Discard(const std::string& path);

  // Opens the partial file that another rank made.
  static absl::StatusOr<SafetensorsWriter> Open(const std::string& path, const SafetensorsLayout& layout);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  // Writes elements [first, first + values.size()) of a tensor.
  absl::Status Write(const std::string& name, int64_t first, absl::Span<const float> values);
  // Flushes to the device; the file is closed.
  absl::Status Close();

 private:
  class Impl;
  explicit SafetensorsWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
