// Reader and writer of tensors in the safetensors format (https://huggingface.co/docs/safetensors).
//
// A file has 8 bytes of header length (little-endian), a JSON header that maps each name to dtype, shape and
// byte range, and the data. Any range of elements can be read or written alone, so a rank reads and writes
// its part only.
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
  std::string file;   // Path of the file that holds the tensor.
  std::string dtype;  // The format's name of the dtype: "F32", "BF16", "I64", ….
  Shape shape;        // Row-major.
  int64_t offset;     // Position of the first byte in the file.
  int64_t bytes;
};

// Parses a header into entries by tensor name. Checks that sizes agree with shapes, and that the tensors
// cover the data without gaps and overlaps. `path` goes into messages and entries; `file_bytes` is the size
// of the whole file. Errors: kDataLoss (names file, tensor and fault).
absl::StatusOr<std::map<std::string, SafetensorsEntry>> ParseSafetensorsHeader(std::string_view header,
                                                                               const std::string& path,
                                                                               int64_t file_bytes);

// Reader of a model folder's weights: model.safetensors, or the files that model.safetensors.index.json
// names. Other stems than "model" name other weights of the folder.
//
// Thread safety: const members may be called from several threads.
class SafetensorsReader {
 public:
  // Reads headers only. Errors: kNotFound, kPermissionDenied, kUnavailable, kDataLoss (a file is truncated, a
  // tensor is not in the file that the index names, …). A link must lead to a file of the model's own store:
  // the folder or, for a snapshot in a Hugging Face cache, the folder of the model there.
  static absl::StatusOr<SafetensorsReader> Open(const std::string& folder, const std::string& stem = "model");

  // Entries by tensor name.
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }

  // The shape of a tensor. Errors: kNotFound (names tensor and folder).
  absl::StatusOr<Shape> ShapeOf(const std::string& name) const;

  // Checks that the tensor exists, has this shape, and is F32, F16 or BF16. Errors: kNotFound, kDataLoss
  // (names tensor, file, the expected and the actual property).
  absl::Status Check(const std::string& name, const Shape& shape) const;

  // Reads elements [first, first + out.size()), in row-major order, as fp32. REQUIRES: Check has passed, and
  // the range lies in the tensor. Errors: kUnavailable (the read failed), kDataLoss (the file has become
  // shorter).
  absl::Status Read(const std::string& name, int64_t first, absl::Span<float> out) const;

 private:
  std::string folder_;
  std::map<std::string, SafetensorsEntry> entries_;
};

// Layout of a file of tensors of one dtype: f32, bf16 or f16. Pure: every rank computes the same one.
class SafetensorsLayout {
 public:
  struct Tensor {
    std::string name;
    Shape shape;
  };
  // The file has the tensors in this order. REQUIRES: names differ.
  explicit SafetensorsLayout(absl::Span<const Tensor> tensors, DType dtype = DType::kF32);

  // The length field and the JSON, padded so that the data start at a multiple of 64 bytes.
  const std::string& header() const { return header_; }
  int64_t file_bytes() const { return file_bytes_; }
  DType dtype() const { return dtype_; }
  // The position in the file of element `element` of a tensor, in bytes.
  int64_t OffsetOf(const std::string& name, int64_t element) const;

 private:
  DType dtype_;
  std::map<std::string, int64_t> offsets_;
  std::string header_;
  int64_t file_bytes_ = 0;
};

// Writer of a safetensors file that several ranks write together. The file is "<path>.partial" until Commit
// renames it.
//
// Collective: one rank calls Create. After it has returned, each rank opens the file and writes its ranges.
//   After all writers are closed, one rank calls Commit, or Discard, which removes the partial file.
class SafetensorsWriter {
 public:
  // Creates the partial file with its full size and header. Errors: kNotFound, kPermissionDenied,
  // kResourceExhausted.
  static absl::Status Create(const std::string& path, const SafetensorsLayout& layout);
  static absl::Status Commit(const std::string& path);
  static void Discard(const std::string& path);

  // Opens the partial file that another rank created. Errors: kNotFound (also if the file has another size).
  static absl::StatusOr<SafetensorsWriter> Open(const std::string& path, const SafetensorsLayout& layout);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  // Writes elements [first, first + values.size()) of a tensor, rounded to the layout's dtype. Errors:
  // kOutOfRange (names the tensor and a finite value that bf16 or f16 cannot hold).
  absl::Status Write(const std::string& name, int64_t first, absl::Span<const float> values);
  // Flushes to the device and closes the file. Errors: kResourceExhausted, kUnavailable, kDataLoss.
  absl::Status Close();

 private:
  class Impl;
  explicit SafetensorsWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
