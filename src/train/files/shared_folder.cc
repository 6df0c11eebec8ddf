#include "src/train/files/shared_folder.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"
#include "src/train/files/folder_entries.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr absl::Duration kLongestSearch = absl::Seconds(3);
constexpr std::chrono::milliseconds kPollInterval(100);

absl::StatusOr<std::string> CreateMarker(const absl::StatusOr<std::string>& staged) {
  WEFT_RETURN_IF_ERROR(staged.status());
  std::string marker = InFolder(*staged, "shared");
  WEFT_RETURN_IF_ERROR(File::CreateNew(marker).status());
  return marker;
}

// A lookup by name asks the file server, where a list of names may be an old one.
absl::Status FindMarker(const std::string& marker, absl::Duration limit) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
  absl::Status opened = File::OpenForUpdate(marker).status();
  while (absl::IsNotFound(opened) && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kPollInterval);
    opened = File::OpenForUpdate(marker).status();
  }
  if (!absl::IsNotFound(opened)) return opened;
  return absl::NotFoundError(absl::StrCat("there is no '", marker,
                                          "' here, which rank 0 has created: put the folder on a file ",
                                          "system that all ranks share"));
}

}  // namespace

absl::Status CheckIsShared(Bootstrap& bootstrap, const absl::StatusOr<std::string>& staged, bool writes,
                           absl::Duration timeout) {
  const bool first = bootstrap.rank() == 0;
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> markers,
                        ExchangeBlobs(bootstrap, "file in an output folder",
                                      first ? CreateMarker(staged) : std::string(), timeout));
  const bool looks = writes && !first;
  return AgreeOnStatus(
      bootstrap, looks ? FindMarker(markers[0], std::min(kLongestSearch, timeout / 2)) : absl::OkStatus(),
      timeout);
}

}  // namespace weft
