// Name and version of the MPI library that this process runs with.
#pragma once

#include <string>
#include <string_view>

namespace weft::internal {

// "Open MPI 4.1.4", "MPICH 4.0.2".
std::string MpiLibraryName();

// Shortens a text of MPI_Get_library_version to the name and the version: its first line up to a comma,
// without the word "Version:" and the v of a number.
std::string NameOfLibraryVersion(std::string_view version);

}  // namespace weft::internal
