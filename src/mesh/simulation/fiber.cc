#include "src/mesh/simulation/fiber.h"

#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <utility>

#include "weft/core/page_bytes.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

// The last bytes below a stack without a guard page.
constexpr uint64_t kIntact = 0x6b63617473666577;  // "wefstack".

}  // namespace

Fiber::Fiber(size_t stack_bytes, bool is_guarded, std::function<void()> body)
    : body_(std::move(body)), mapped_bytes_(stack_bytes + PageBytes()), is_guarded_(is_guarded) {
  void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  WEFT_CHECK(memory != MAP_FAILED, "cannot map the stack of a fiber");
  mapped_ = static_cast<std::byte*>(memory);
  std::byte* stack = mapped_ + PageBytes();
  if (is_guarded_) {
    WEFT_CHECK(mprotect(mapped_, PageBytes(), PROT_NONE) == 0, "cannot protect the guard page of a fiber");
  } else {
    std::memcpy(stack - sizeof(kIntact), &kIntact, sizeof(kIntact));
  }
  sanitizer_.SetStack(stack, stack_bytes);
  own_ = NewStack(stack, stack_bytes, &Fiber::Enter, this);
}

Fiber::~Fiber() {
  if (!finished_ && sanitizer_.RetainStack()) return;
  sanitizer_.ReleaseStack();
  munmap(mapped_, mapped_bytes_);
}

void Fiber::Enter(void* self) { static_cast<Fiber*>(self)->Run(); }

void Fiber::Run() {
  sanitizer_.FinishSwitchIn();
  body_();
  body_ = nullptr;
  finished_ = true;
  sanitizer_.StartSwitchOut(/*finished=*/true);
  SwitchStack(own_, resumer_);
}

void Fiber::CheckStack() const {
  if (is_guarded_) return;
  WEFT_CHECK(std::memcmp(mapped_ + PageBytes() - sizeof(kIntact), &kIntact, sizeof(kIntact)) == 0,
             "the stack of a fiber has overflowed: see SimOptions::kFiberStackBytes");
}

void Fiber::Resume() {
  sanitizer_.StartSwitchIn();
  SwitchStack(resumer_, own_);
  sanitizer_.FinishSwitchOut();
}

void Fiber::Suspend() {
  CheckStack();
  sanitizer_.StartSwitchOut(/*finished=*/false);
  SwitchStack(own_, resumer_);
  sanitizer_.FinishSwitchIn();
}

}  // namespace weft::internal
