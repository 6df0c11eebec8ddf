// Result of a chain of collectives, as a tensor to wait for.
//
// It keeps the memory that the collectives use until they are *released*: their inputs, intermediate tensors
// and the result. A peer of the node may read the result on behalf of another peer.
//
// Thread safety: belongs to the thread that submitted the collectives.
// Lifetime: the engine must outlive it. The destructor does not wait: the collectives continue, and the
//   engine keeps their memory until they are *released* (see Work::Detach).
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
  PendingTensor() = default;             // Invalid: has no tensor.
  explicit PendingTensor(Tensor ready);  // Valid; has no collective to wait for.
  // `kept`: tensors that the collective reads.
  PendingTensor(Tensor result, Work work, std::vector<Tensor> kept);
  PendingTensor(PendingTensor&& other) noexcept;
  PendingTensor& operator=(PendingTensor&& other) noexcept;
  ~PendingTensor();

  // Adds a collective to the chain. It reads the present result, was submitted `after` work(), and writes
  // `result`.
  // REQUIRES: has_finish() is false.
  void Follow(Tensor result, Work work);

  // Adds a local step that follows the collectives, such as a sum or a conversion. The first Wait runs the
  // steps in the order in which they were added; what a step returns is the result from then on. If a step
  // fails, the next Wait runs it and the later ones again.
  using Finish = std::function<absl::StatusOr<Tensor>(const Tensor& received)>;
  void FinishWith(Finish finish);
  bool has_finish() const { return !finishes_.empty(); }

  bool valid() const { return result_.defined(); }
  // The result's memory. Its contents are valid after Wait.
  const Tensor& result() const { return result_; }
  // The last collective, as `after` of another; null if there is none.
  const Work* work() const { return works_.empty() ? nullptr : &works_.back(); }
  // Blocks until the contents of the result are valid. May be called again. REQUIRES: valid().
  // Errors: those of Work::Wait and of the local steps.
  absl::StatusOr<Tensor> Wait();

 private:
  void Detach();

  Tensor result_;
  std::vector<Tensor> kept_;
  std::deque<Finish> finishes_;  // Steps that have not run yet.
  std::vector<Work> works_;      // In the order of submission, each after the one before.
};

}  // namespace weft
