// Writing to a file descriptor to the end.
#pragma once

#include <string_view>

namespace weft {

// Writes all of `bytes`, in as many calls as it takes. Returns false if one failed: see errno. Some of the
// bytes may be written then.
//
// Thread safety: any thread may call it.
bool WriteAll(int descriptor, std::string_view bytes);

}  // namespace weft
