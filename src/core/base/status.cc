#include "weft/core/status.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include <absl/strings/cord.h>

namespace weft {

void CheckFailed(const char* file, int line, const char* condition, std::string_view what) {
  std::fprintf(stderr, "%s:%d: broken invariant: %.*s (%s)\n", file, line, static_cast<int>(what.size()),
               what.data(), condition);
  std::abort();
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(ToAbsl(context), ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

void Report(const absl::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "weft: %s\n", std::string(status.message()).c_str());
}

}  // namespace weft
