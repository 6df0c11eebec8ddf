#include "weft/core/cache_size.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

namespace weft {
namespace {

constexpr char kFolder[] = "/sys/devices/system/cpu/cpu0/cache";
constexpr int kAnyLevel = 9;

// The first word of a file; empty if there is no file or no word.
std::string WordIn(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// "32768K" or "1M", as the kernel writes sizes; 0 for anything else.
int64_t ParseSize(std::string text) {
  int64_t unit = 1;
  if (!text.empty() && (text.back() == 'K' || text.back() == 'M')) {
    unit = text.back() == 'K' ? int64_t{1} << 10 : int64_t{1} << 20;
    text.pop_back();
  }
  int64_t count = 0;
  return absl::SimpleAtoi(text, &count) && count > 0 ? count * unit : 0;
}

int64_t FirstKnown(std::initializer_list<int64_t> candidates) {
  return *std::find_if(candidates.begin(), candidates.end(), [](int64_t bytes) { return bytes > 0; });
}

}  // namespace

int64_t CacheBytesIn(const std::string& folder, int level) {
  int64_t largest = 0;
  for (int index = 0;; ++index) {
    const std::string cache = absl::StrCat(folder, "/index", index, "/");
    int its_level = 0;
    if (!absl::SimpleAtoi(WordIn(cache + "level"), &its_level)) return largest;
    if (its_level > level || WordIn(cache + "type") == "Instruction") continue;
    largest = std::max(largest, ParseSize(WordIn(cache + "size")));
  }
}

int64_t CoreCacheBytes() {
  static const int64_t bytes =
      FirstKnown({CacheBytesIn(kFolder, 2), sysconf(_SC_LEVEL2_CACHE_SIZE), int64_t{1} << 20});
  return bytes;
}

int64_t LastLevelCacheBytes() {
  static const int64_t bytes = FirstKnown({CacheBytesIn(kFolder, kAnyLevel), sysconf(_SC_LEVEL3_CACHE_SIZE),
                                           sysconf(_SC_LEVEL2_CACHE_SIZE), int64_t{64} << 20});
  return bytes;
}

}  // namespace weft
