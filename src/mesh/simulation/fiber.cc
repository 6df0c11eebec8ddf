#include "src/mesh/simulation/fiber.h"

#include <unistd.h>

#include <cstdint>
#include <sys/mman.h>
#include <utility>

#include "weft/core/status.h"

namespace weft::internal {
namespace {

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

Fiber::Fiber(size_t stack_bytes, std::function<void()> body)
    : body_(std::move(body)), mapped_bytes_(stack_bytes + PageBytes()) {
  void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  WEFT_CHECK(memory != MAP_FAILED, "cannot map the stack of a fiber");
  mapped_ = static_cast<std::byte*>(memory);
  WEFT_CHECK(mprotect(mapped_, PageBytes(), PROT_NONE) == 0, "cannot protect the guard page of a fiber");
  getcontext(&own_);
  own_.uc_stack.ss_sp = mapped_ + PageBytes();
  own_.uc_stack.ss_size = stack_bytes;
  own_.uc_link = nullptr;
  sanitizer_.SetStack(own_.uc_stack.ss_sp, stack_bytes);
  // makecontext passes int arguments, so the pointer is split into two.
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::Enter), 2, static_cast<unsigned>(self >> 32U),
              static_cast<unsigned>(self));
}

Fiber::~Fiber() {
  if (finished_ || !sanitizer_.RetainStack()) munmap(mapped_, mapped_bytes_);
}

void Fiber::Enter(unsigned high, unsigned low) {
  reinterpret_cast<Fiber*>((static_cast<uintptr_t>(high) << 32U) | low)->Run();
}

void Fiber::Run() {
  sanitizer_.FinishSwitchIn();
  body_();
  body_ = nullptr;
  finished_ = true;
  sanitizer_.StartSwitchOut(/*finished=*/true);
  setcontext(&resumer_);
}

void Fiber::Resume() {
  sanitizer_.StartSwitchIn();
  swapcontext(&resumer_, &own_);
  sanitizer_.FinishSwitchOut();
}

void Fiber::Suspend() {
  sanitizer_.StartSwitchOut(/*finished=*/false);
  swapcontext(&own_, &resumer_);
  sanitizer_.FinishSwitchIn();
}

}  // namespace weft::internal
