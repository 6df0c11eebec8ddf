// Content of a committed checkpoint: its open files, and reads that check all ranges that they touch.
//
// Thread safety: const members may be called from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "src/train/checkpoint/manifest.h"
#include "src/train/checkpoint/range_cache.h"
#include "src/train/files/file_io.h"
#include "weft/train/checkpoint.h"
#include "weft/train/safetensors.h"

namespace weft {

struct Checkpoint::Content {
  // A file of the checkpoint. Its ranges are sorted by offset.
  struct CheckedFile {
    std::string path;
    File file;
    std::vector<FileRange> ranges;

    // Reads the runs of a range end to end into `out`, and checks them. `span`: scratch.
    absl::Status ReadRange(const FileRange& range, char* out, std::vector<char>& span) const;
    // Copies all ranges into `copy`, which is empty, and checks them.
    absl::Status CopyTo(const File& copy) const;
  };
  struct Array {
    size_t file;  // Index in `files`.
    SafetensorsEntry entry;
  };

  std::string folder;
  CheckpointManifest manifest;     // Without ranges: `files` has them.
  uint64_t manifest_hash = 0;      // Hash of its text, with the checksums of all files.
  std::vector<CheckedFile> files;  // In the order of manifest.files.
  std::map<std::pair<std::string, std::string>, Array> arrays;  // By stem and name.
  mutable RangeCache cache;

  // Opens a file, and checks its size and, if it has arrays, its header.
  absl::Status OpenFile(const std::string& name, CheckpointManifest::File& described);
  // Reads bytes [begin, begin + out.size()) of a file, and checks all ranges in which they lie.
  absl::Status ReadBytes(size_t number, int64_t begin, absl::Span<char> out) const;

 private:
  // Checks and reads the header of the last file.
  absl::Status ReadArrays(const std::string& stem);
  absl::StatusOr<RangeCache::Bytes> Fetch(const RangeCache::Key& key) const;
};

}  // namespace weft
