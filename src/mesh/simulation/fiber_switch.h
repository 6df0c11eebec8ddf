// Switches between stacks of one thread. CMake chooses the implementation.
#pragma once

#include <cstddef>

namespace weft::internal {

// Saved context of suspended code: a pointer into its stack.
using SuspendedCode = void*;

// Prepares code that runs `entry(argument)` on the stack at `bottom`, and returns its context.
// REQUIRES: `entry` never returns, and no exception leaves it.
SuspendedCode NewStack(std::byte* bottom, size_t bytes, void (*entry)(void*), void* argument);

// Suspends the caller, saves its context in `caller`, and continues `next`. Returns when other code continues
// `caller`.
void SwitchStack(SuspendedCode& caller, SuspendedCode next);

}  // namespace weft::internal
