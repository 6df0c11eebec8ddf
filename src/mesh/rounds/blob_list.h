// Blobs of several ranks in one string: for each a rank, a length and the bytes. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::internal {

struct RankBlob {
  int rank;
  std::string_view blob;
};

void AppendBlob(std::string& list, const RankBlob& entry);
// The entries of a list, which point into it. nullopt: it is malformed, or names a rank outside [0, size).
std::optional<std::vector<RankBlob>> ParseBlobs(std::string_view list, int size);

}  // namespace weft::internal
