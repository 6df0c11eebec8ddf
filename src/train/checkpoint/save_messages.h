// Messages that ranks exchange in a save of a checkpoint: their tensors before it, their parts after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

#include "src/train/checkpoint/checkpoint_layout.h"
#include "src/train/checkpoint/file_range.h"
#include "src/train/checkpoint/snapshot_writer.h"
#include "weft/train/checkpoint.h"

namespace weft {

// The step, and the tensors of which this rank has elements.
std::string EncodeTensors(const CheckpointState& state);
// The tensors of all ranks, in the order of their first mention.
// Errors: kInvalidArgument (ranks disagree on the step or on a shape), kInternal (not a message of
//   EncodeTensors).
absl::StatusOr<std::vector<CheckpointLayout::Tensor>> DecodeTensors(const std::vector<std::string>& blobs,
                                                                    int64_t step);

// A rank's part of the manifest.
struct RankPart {
  std::vector<std::vector<FileRange>> ranges;  // By file.
  std::map<std::string, int64_t> counts_of_parameters;
};

// The ranges that this rank has written, and its counts of parameters.
std::string EncodePart(const SnapshotWriter& writer, const std::map<std::string, int64_t>& counts);
// `files`: number of files of the layout. Errors: kInternal (not a message of EncodePart).
absl::StatusOr<RankPart> DecodePart(std::string_view blob, size_t files);

}  // namespace weft
