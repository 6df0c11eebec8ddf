// A tensor that one or several chained collectives are bringing.
//
// It keeps the memory that the collectives use alive until they are released: their inputs, what is handed
// from one to the next, and the result, which a peer of the node may read on behalf of another.
//
// Thread safety: belongs to the thread that submitted the collectives.
// Lifetime: the engine must outlive it. Destroying it waits for nobody: the collectives go on, and the engine
//   keeps their memory until they are *released* (see Work::Detach).
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/comm/work.h"
#include "weft/core/tensor.h"

namespace weft {

class PendingTensor {
 public:
  PendingTensor() = default;             // Nothing.
  explicit PendingTensor(Tensor ready);  // Nothing to wait for.
  // `kept`: what the collective reads.
  PendingTensor(Tensor result, Work work, std::vector<Tensor> kept);
  PendingTensor(PendingTensor&& other) noexcept;
  PendingTensor& operator=(PendingTensor&& other) noexcept;
  ~PendingTensor();

  // A further collective, submitted `after` work(), has `result`; what there was is its input.
  void Follow(Tensor result, Work work);

  // What is left to do here when the collectives have brought their result: sums, conversions. Done by the
  // first Wait, in the order given, and what it returns is the result from then on; what fails is left for
  // the next Wait, and so are those behind it. No collective may follow.
  using Finish = std::function<absl::StatusOr<Tensor>(const Tensor& brought)>;
  void FinishWith(Finish finish);
  bool finishes() const { return !finishes_.empty(); }

  bool valid() const { return result_.defined(); }
  // Its memory; the contents are valid after Wait.
  const Tensor& result() const { return result_; }
  // For `after`; null if there is nothing to wait for.
  const Work* work() const { return works_.empty() ? nullptr : &works_.back(); }
  // Blocks until the contents are valid; again is harmless. Errors: Work::Wait's.
  absl::StatusOr<Tensor> Wait();

 private:
  void LetGo();

  Tensor result_;
  std::vector<Tensor> kept_;
  std::deque<Finish> finishes_;
  std::vector<Work> works_;  // In the order of submission; each comes after the one before.
};

}  // namespace weft
