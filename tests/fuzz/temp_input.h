// File with the bytes of one input, for readers that take a path.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "weft/core/status.h"

namespace weft {

class TempInput {
 public:
  TempInput(const char* suffix, const uint8_t* data, size_t size)
      : path_(std::string(Folder()) + "/weft-fuzz-" + std::to_string(getpid()) + suffix) {
    std::ofstream file(path_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    WEFT_CHECK(file.good(), "the temporary file of an input cannot be written");
  }
  ~TempInput() { unlink(path_.c_str()); }
  TempInput(const TempInput&) = delete;
  TempInput& operator=(const TempInput&) = delete;

  const std::string& path() const { return path_; }

 private:
  static const char* Folder() {
    const char* folder = std::getenv("TMPDIR");
    return folder == nullptr ? "/tmp" : folder;
  }
  std::string path_;
};

}  // namespace weft
