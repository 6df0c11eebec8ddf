#include "src/mesh/rounds/blob_list.h"

#include <cstdint>
#include <cstring>

namespace weft::internal {
namespace {

struct EntryHeader {
  uint64_t rank = 0;
  uint64_t bytes = 0;
};

}  // namespace

void AppendBlob(std::string& list, const RankBlob& entry) {
  const EntryHeader header{static_cast<uint64_t>(entry.rank), entry.blob.size()};
  list.append(reinterpret_cast<const char*>(&header), sizeof(header));
  list.append(entry.blob);
}

std::optional<std::vector<RankBlob>> ParseBlobs(std::string_view list, int size) {
  std::vector<RankBlob> entries;
  while (!list.empty()) {
    EntryHeader header;
    if (list.size() < sizeof(header)) return std::nullopt;
    std::memcpy(&header, list.data(), sizeof(header));
    list.remove_prefix(sizeof(header));
    if (header.rank >= static_cast<uint64_t>(size) || header.bytes > list.size()) return std::nullopt;
    entries.push_back({static_cast<int>(header.rank), list.substr(0, header.bytes)});
    list.remove_prefix(header.bytes);
  }
  return entries;
}

}  // namespace weft::internal
