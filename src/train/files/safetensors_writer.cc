#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"
#include "src/train/files/json.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

constexpr size_t kDataAlignment = 64;

std::string PartialPath(const std::string& path) { return path + ".partial"; }

// The length field and the JSON, padded with spaces.
std::string FrameHeader(std::string json) {
  const size_t unpadded = sizeof(uint64_t) + json.size();
  json.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + json;
}

// The format's name of a dtype that layouts can have.
const char* FormatName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    default:
      CheckFailed(__FILE__, __LINE__, "dtype", "weights are f32, bf16 or f16");
  }
}

// OK if no finite value has become infinite. `rounded`: the values in `dtype`, bf16 or f16.
absl::Status CheckFit(const std::string& name, absl::Span<const float> values, DType dtype,
                      absl::Span<const uint16_t> rounded) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const uint16_t infinity = dtype == DType::kF16 ? ToF16(kInfinity).bits : ToBF16(kInfinity).bits;
  constexpr uint16_t kMagnitude = 0x7FFF;
  for (size_t i = 0; i < values.size(); ++i) {
    if ((rounded[i] & kMagnitude) != infinity || std::isinf(values[i])) continue;
    return absl::OutOfRangeError(absl::StrCat("tensor '", name, "' has the value ", values[i], ", which ",
                                              ToAbsl(Name(dtype)), " cannot hold: export in ",
                                              dtype == DType::kF16 ? "bf16 or f32" : "f32"));
  }
  return absl::OkStatus();
}

}  // namespace

SafetensorsLayout::SafetensorsLayout(absl::Span<const Tensor> tensors, DType dtype) : dtype_(dtype) {
  // Ordered JSON lists tensors in the order of their data. transformers requires "format".
  Json header;
  header["__metadata__"] = {{"format", "pt"}};
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) {
    WEFT_CHECK(offsets_.emplace(tensor.name, bytes).second, "two tensors have the same name");
    const int64_t end = bytes + BytesOf(ElementCount(tensor.shape), dtype);
    header[tensor.name] = {{"dtype", FormatName(dtype)},
                           {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
                           {"data_offsets", {bytes, end}}};
    bytes = end;
  }
  header_ = FrameHeader(JsonText(header));
  file_bytes_ = static_cast<int64_t>(header_.size()) + bytes;
}

int64_t SafetensorsLayout::OffsetOf(const std::string& name, int64_t element) const {
  const auto found = offsets_.find(name);
  WEFT_CHECK(found != offsets_.end(), "the tensor is not in the layout");
  return static_cast<int64_t>(header_.size()) + found->second + BytesOf(element, dtype_);
}

class SafetensorsWriter::Impl {
 public:
  Impl(File file, SafetensorsLayout layout) : file_(std::move(file)), layout_(std::move(layout)) {}

  absl::Status Write(const std::string& name, int64_t first, absl::Span<const float> values) const {
    const int64_t offset = layout_.OffsetOf(name, first);
    if (layout_.dtype() == DType::kF32) {
      return file_.WriteAt(offset, values.data(), values.size() * sizeof(float));
    }
    std::vector<uint16_t> rounded(values.size());
    ConvertRun(values.data(), DType::kF32, rounded.data(), layout_.dtype(),
               static_cast<int64_t>(values.size()));
    WEFT_RETURN_IF_ERROR(CheckFit(name, values, layout_.dtype(), rounded));
    return file_.WriteAt(offset, rounded.data(), rounded.size() * sizeof(uint16_t));
  }
  absl::Status Close() { return file_.Close(); }

 private:
  File file_;
  SafetensorsLayout layout_;
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

absl::Status SafetensorsWriter::Create(const std::string& path, const SafetensorsLayout& layout) {
  Discard(path);  // An earlier run may have left its partial file.
  WEFT_ASSIGN_OR_RETURN(File file, File::CreateNew(PartialPath(path)));
  absl::Status status = file.Reserve(layout.file_bytes());
  if (status.ok()) {
    status = file.WriteAt(0, layout.header().data(), layout.header().size());
  }
  if (status.ok()) {
    status = file.Close();
  }
  if (!status.ok()) {
    Discard(path);
  }
  return status;
}

absl::Status SafetensorsWriter::Commit(const std::string& path) {
  return std::rename(PartialPath(path).c_str(), path.c_str()) == 0 ? absl::OkStatus()
                                                                   : ErrnoStatus(errno, "write", path);
}

void SafetensorsWriter::Discard(const std::string& path) { unlink(PartialPath(path).c_str()); }

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Open(const std::string& path,
                                                          const SafetensorsLayout& layout) {
  const std::string partial = PartialPath(path);
  absl::StatusOr<File> file = File::OpenForUpdate(partial);
  WEFT_ASSIGN_OR_RETURN(const int64_t bytes, file.ok() ? file->Size() : absl::StatusOr<int64_t>(-1));
  if (absl::IsNotFound(file.status()) || (file.ok() && bytes != layout.file_bytes())) {
    return absl::NotFoundError(absl::StrCat("'", partial,
                                            "' is not the file that rank 0 created: put the folder on a ",
                                            "file system that all ranks share"));
  }
  WEFT_RETURN_IF_ERROR(file.status());
  return SafetensorsWriter(std::make_unique<Impl>(*std::move(file), layout));
}

absl::Status SafetensorsWriter::Write(const std::string& name, int64_t first,
                                      absl::Span<const float> values) {
  return impl_->Write(name, first, values);
}

absl::Status SafetensorsWriter::Close() { return impl_->Close(); }

}  // namespace weft
