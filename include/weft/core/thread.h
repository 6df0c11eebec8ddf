// Start of threads, with an error where std::thread throws.
#pragma once

#include <string_view>
#include <thread>

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>

namespace weft {

// Starts a thread that runs `body`. `purpose` completes the error "cannot start a thread for".
//
// Thread safety: any thread may call it.
// Errors: kResourceExhausted (the system gives the process no thread; names the limits).
absl::StatusOr<std::thread> StartThread(std::string_view purpose, absl::AnyInvocable<void()> body);

}  // namespace weft
