// Stack switches for the System V ABI of x86-64. A switch saves the registers that a called function must
// preserve, and makes no system call.
#include <cstdint>
#include <new>

#include "src/mesh/simulation/fiber_switch.h"

// weft_switch_stack(&caller, next). Below its return address, suspended code has rbp, rbx, r12 to r15, and
// the control words of the floating-point units.
asm(R"(
    .text
    .globl weft_switch_stack
    .hidden weft_switch_stack
    .type weft_switch_stack, @function
weft_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    subq $8, %rsp
    stmxcsr (%rsp)
    fnstcw 4(%rsp)
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    ldmxcsr (%rsp)
    fldcw 4(%rsp)
    addq $8, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size weft_switch_stack, .-weft_switch_stack

    .globl weft_enter_stack
    .hidden weft_enter_stack
    .type weft_enter_stack, @function
weft_enter_stack:
    movq %r12, %rdi
    xorl %ebp, %ebp
    call *%r13
    ud2
    .size weft_enter_stack, .-weft_enter_stack
)");

extern "C" {
void weft_switch_stack(void** caller, void* next);
void weft_enter_stack();
}

namespace weft::internal {
namespace {

// The registers that weft_switch_stack pops. New code starts in weft_enter_stack, which calls r13(r12).
struct Frame {
  uint32_t mxcsr = 0x1f80;       // The default of a process.
  uint16_t x87_control = 0x37f;  // Likewise.
  uint16_t unused = 0;
  void* r15 = nullptr;
  void* r14 = nullptr;
  void (*r13)(void*) = nullptr;
  void* r12 = nullptr;
  void* rbx = nullptr;
  void* rbp = nullptr;
  void (*return_address)() = &weft_enter_stack;
};
constexpr size_t kStackAlignment = 16;
static_assert(sizeof(Frame) % kStackAlignment == 0);

}  // namespace

SuspendedCode NewStack(std::byte* bottom, size_t bytes, void (*entry)(void*), void* argument) {
  // weft_enter_stack starts with an aligned stack pointer, just above the frame.
  std::byte* end = bottom + bytes;
  end -= reinterpret_cast<uintptr_t>(end) % kStackAlignment;
  return new (end - sizeof(Frame)) Frame{.r13 = entry, .r12 = argument};
}

void SwitchStack(SuspendedCode& caller, SuspendedCode next) { weft_switch_stack(&caller, next); }

}  // namespace weft::internal
