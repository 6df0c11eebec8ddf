// Portable stack switches. Each one makes a system call for the signal mask.
#include <ucontext.h>

#include <cstdint>
#include <new>

#include "src/mesh/simulation/fiber_switch.h"

namespace weft::internal {
namespace {

// makecontext passes int arguments, so that each pointer is split into two.
void Enter(unsigned entry_high, unsigned entry_low, unsigned argument_high, unsigned argument_low) {
  const auto join = [](unsigned high, unsigned low) { return (static_cast<uintptr_t>(high) << 32U) | low; };
  const auto entry = reinterpret_cast<void (*)(void*)>(join(entry_high, entry_low));
  entry(reinterpret_cast<void*>(join(argument_high, argument_low)));
}

}  // namespace

SuspendedCode NewStack(std::byte* bottom, size_t bytes, void (*entry)(void*), void* argument) {
  // The first context is at the end of the stack that it describes.
  const size_t context_bytes =
      (sizeof(ucontext_t) / alignof(std::max_align_t) + 1) * alignof(std::max_align_t);
  auto* context = new (bottom + bytes - context_bytes) ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = bottom;
  context->uc_stack.ss_size = bytes - context_bytes;
  context->uc_link = nullptr;
  const auto entry_bits = reinterpret_cast<uintptr_t>(entry);
  const auto argument_bits = reinterpret_cast<uintptr_t>(argument);
  makecontext(context, reinterpret_cast<void (*)()>(&Enter), 4, static_cast<unsigned>(entry_bits >> 32U),
              static_cast<unsigned>(entry_bits), static_cast<unsigned>(argument_bits >> 32U),
              static_cast<unsigned>(argument_bits));
  return context;
}

void SwitchStack(SuspendedCode& caller, SuspendedCode next) {
  ucontext_t context;
  // swapcontext does not set uc_stack, and AddressSanitizer reads it when this code continues.
  context.uc_stack = {};
  caller = &context;
  swapcontext(&context, static_cast<ucontext_t*>(next));
}

}  // namespace weft::internal
