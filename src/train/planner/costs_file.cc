#include "src/train/planner/costs_file.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"
#include "src/train/planner/plan_json.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int64_t kMaxCostsBytes = 1 << 20;

}  // namespace

std::string CostsPath(const PlanOptions& options) {
  if (!options.costs_file.empty()) return options.costs_file;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != 0) {
    return absl::StrCat(cache, "/weft/costs.json");
  }
  const char* home = std::getenv("HOME");
  return absl::StrCat(home == nullptr || *home == 0 ? "." : home, "/.cache/weft/costs.json");
}

absl::StatusOr<MachineCosts> ReadCosts(const PlanOptions& options, const std::string& path) {
  absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxCostsBytes);
  if (absl::IsNotFound(text.status()) && (options.costs_file.empty() || options.measure))
    return MachineCosts();
  WEFT_RETURN_IF_ERROR(text.status());
  return ParseCosts(*text, path);
}

absl::Status WriteCosts(const MachineCosts& costs, const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return ErrnoStatus(error.value(), "create the folder", folder.string());
  return WriteWholeFile(path, FormatCosts(costs));
}

}  // namespace weft
