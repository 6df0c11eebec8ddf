// A runtime that hands every call on to another one. Tests derive from it and change single calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "weft/mesh/runtime.h"

namespace weft::testing {

class ForwardingRuntime : public Runtime {
 public:
  // Lifetime: `base` must outlive this.
  explicit ForwardingRuntime(Runtime& base) : base_(base) {}

  int64_t NowNs() const override { return base_.NowNs(); }
  void Yield() override { base_.Yield(); }
  void SleepFor(int64_t ns) override { base_.SleepFor(ns); }
  void SleepOn(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) override {
    base_.SleepOn(word, expected, timeout_ns);
  }
  void WakeAll(const std::atomic<uint32_t>& word) override { base_.WakeAll(word); }
  void Move(MoveSize size, absl::FunctionRef<void()> move) override { base_.Move(size, move); }
  absl::StatusOr<std::unique_ptr<Task>> Start(std::string_view purpose, std::function<void()> body) override {
    return base_.Start(purpose, std::move(body));
  }

 private:
  Runtime& base_;
};

}  // namespace weft::testing
