#include "src/mesh/mpi/mpi_library.h"

#include <array>
#include <cstddef>
#include <vector>

#include <absl/strings/ascii.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <mpi.h>

#include "weft/core/status.h"

namespace weft::internal {

std::string MpiLibraryName() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text = {};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "unknown library";
  return NameOfLibraryVersion({text.data(), static_cast<size_t>(length)});
}

std::string NameOfLibraryVersion(std::string_view version) {
  const std::string_view name = version.substr(0, version.find_first_of(",\n"));
  std::vector<absl::string_view> words;
  for (absl::string_view word : absl::StrSplit(ToAbsl(name), absl::ByAnyChar(" \t"), absl::SkipEmpty())) {
    if (word == "Version:") continue;
    if (word.size() > 1 && word[0] == 'v' && absl::ascii_isdigit(word[1])) word.remove_prefix(1);
    words.push_back(word);
  }
  return absl::StrJoin(words, " ");
}

}  // namespace weft::internal
