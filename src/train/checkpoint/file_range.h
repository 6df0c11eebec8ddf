// Ranges of a checkpoint's files, as they were written and hashed: one run of bytes, or equally spaced runs.
//
// Pure. Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/types/span.h>

#include "weft/sharding/flat_layout.h"

namespace weft {

struct FileRange {
  int64_t offset = 0;  // Position of the first byte in the file.
  int64_t run_bytes = 0;
  int64_t runs = 1;
  int64_t stride = 0;  // Distance between starts of runs, in bytes; 0 for one run.
  uint64_t hash = 0;   // Hash64 of all runs end to end.

  int64_t bytes() const { return runs * run_bytes; }
  // From the first byte to the end of the last run.
  int64_t span() const { return (runs - 1) * stride + run_bytes; }
  int64_t end() const { return offset + span(); }
};

// Upper limit of FileRange::span in a checkpoint.
inline constexpr int64_t kMaxRangeSpan = int64_t{4} << 20;

// Cuts the piece of a parameter into ranges of at most kMaxRangeSpan, in the order of its elements in memory.
// `offset`: place in the file of the parameter's first element. Hashes are left 0.
std::vector<FileRange> CutIntoRanges(const ShardPiece& piece, int64_t offset);

// Calls visit(offset in the file, offset in the range's bytes, bytes) for each part of the range's runs that
// lies in [begin, end) of the file, by ascending offset.
void ForEachOverlap(const FileRange& range, int64_t begin, int64_t end,
                    absl::FunctionRef<void(int64_t file_offset, int64_t range_offset, int64_t bytes)> visit);

// OK if the ranges cover each byte of a file exactly once. Errors: kNotFound (a byte that no range has),
// kAlreadyExists (a byte that two ranges have), kOutOfRange (a range that no file can have, or that ends
// beyond it); names the byte.
absl::Status CheckCoverage(absl::Span<const FileRange> ranges, int64_t file_bytes);

}  // namespace weft
