#include "src/mesh/simulation/fibre.h"

#include <unistd.h>

#include <cstdint>
#include <sys/mman.h>
#include <utility>

#include "weft/core/status.h"

namespace weft::internal {
namespace {

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

Fibre::Fibre(size_t stack_bytes, std::function<void()> body)
    : body_(std::move(body)), mapped_bytes_(stack_bytes + PageBytes()) {
  void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  WEFT_CHECK(memory != MAP_FAILED, "no memory for the stack of a fibre");
  mapped_ = static_cast<std::byte*>(memory);
  WEFT_CHECK(mprotect(mapped_, PageBytes(), PROT_NONE) == 0, "the stack of a fibre cannot be guarded");
  getcontext(&own_);
  own_.uc_stack.ss_sp = mapped_ + PageBytes();
  own_.uc_stack.ss_size = stack_bytes;
  own_.uc_link = nullptr;
  sanitizer_.SetStack(own_.uc_stack.ss_sp, stack_bytes);
  // makecontext passes ints.
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&own_, reinterpret_cast<void (*)()>(&Fibre::Enter), 2, static_cast<unsigned>(self >> 32U),
              static_cast<unsigned>(self));
}

Fibre::~Fibre() {
  if (finished_ || !sanitizer_.KeepsStack()) munmap(mapped_, mapped_bytes_);
}

void Fibre::Enter(unsigned high, unsigned low) {
  reinterpret_cast<Fibre*>((static_cast<uintptr_t>(high) << 32U) | low)->Run();
}

void Fibre::Run() {
  sanitizer_.Entered();
  body_();
  body_ = nullptr;
  finished_ = true;
  sanitizer_.Leaving(/*for_good=*/true);
  setcontext(&resumer_);
}

void Fibre::Resume() {
  sanitizer_.Entering();
  swapcontext(&resumer_, &own_);
  sanitizer_.Returned();
}

void Fibre::Suspend() {
  sanitizer_.Leaving(/*for_good=*/false);
  swapcontext(&own_, &resumer_);
  sanitizer_.Entered();
}

}  // namespace weft::internal
