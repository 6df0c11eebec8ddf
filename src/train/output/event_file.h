// Event file of TensorBoard with the metrics of a run (--tensorboard).
//
// Format: records of a TFRecord file (length, masked CRC of the length, content, masked CRC of the content),
// each an Event of protocol buffers. Sources: tensorflow/core/lib/io/record_writer.h,
// tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/train/files/file_io.h"
#include "weft/train/metrics.h"

namespace weft {

// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
uint32_t Crc32c(std::string_view bytes);

// The bytes of a record.
std::string TfRecord(std::string_view content);

// An Event with a scalar for each number of `metrics`. Tags are the keys of ToJson; those of objects are
// joined by a slash, under which TensorBoard groups them. Numbers that are not finite are left out.
std::string ScalarEvent(const StepMetrics& metrics, double wall_time_s);

class EventFile {
 public:
  // Creates a file with a new name in `folder`, which is created if needed. Errors: kNotFound,
  // kPermissionDenied, kResourceExhausted, kUnavailable, kDataLoss (names the path).
  static absl::StatusOr<EventFile> Create(const std::string& folder);

  // Appends the step's event by one call. Before that of its first step, the file tells TensorBoard to forget
  // the steps from there on, which an earlier file may have: the run repeats them. Errors: as Create.
  absl::Status Write(const StepMetrics& metrics);

 private:
  explicit EventFile(File file) : file_(std::move(file)) {}
  absl::Status Append(std::string_view records);

  File file_;
  int64_t bytes_ = 0;
  bool started_ = false;  // A step was written.
};

}  // namespace weft
