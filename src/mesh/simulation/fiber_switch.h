// Switches between stacks of one thread. CMake chooses the implementation.
#pragma once

#include <cstddef>

namespace weft::internal {

// Place at which suspended code continues. It points into the stack of that code.
using SuspendedCode = void*;

// Code that will run `entry(argument)` on the stack at `bottom`.
// REQUIRES: `entry` never returns, and no exception leaves it.
SuspendedCode NewStack(std::byte* bottom, size_t bytes, void (*entry)(void*), void* argument);

// Suspends the caller, sets `caller` to its place, and continues `next`. Returns when other code continues
// `caller`.
void SwitchStack(SuspendedCode& caller, SuspendedCode next);

}  // namespace weft::internal
