// Name and version of the MPI library that this process runs with.
#pragma once

#include <string>
#include <string_view>

namespace weft::internal {

// Name and version of the library, such as "Open MPI 4.1.4"; "unknown library" if MPI does not tell.
std::string MpiLibraryName();

// Shortens what MPI_Get_library_version says: the first line up to a comma, without the word "Version:" and
// the v of a number. This is the name and the version for Open MPI and MPICH; other texts may keep more.
std::string NameOfLibraryVersion(std::string_view version);

}  // namespace weft::internal
