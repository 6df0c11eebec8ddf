#include "weft/context_parallel/pending_tensor.h"

#include <utility>

#include "weft/core/status.h"

namespace weft {

PendingTensor::PendingTensor(Tensor ready) : result_(std::move(ready)) {}

PendingTensor::PendingTensor(Tensor result, Work work, std::vector<Tensor> kept)
    : result_(std::move(result)), kept_(std::move(kept)) {
  works_.push_back(std::move(work));
}

PendingTensor::PendingTensor(PendingTensor&& other) noexcept
    : result_(std::exchange(other.result_, {})),
      kept_(std::move(other.kept_)),
      finishes_(std::move(other.finishes_)),
      works_(std::move(other.works_)) {}

PendingTensor& PendingTensor::operator=(PendingTensor&& other) noexcept {
  if (this == &other) return *this;
  Detach();
  result_ = std::exchange(other.result_, {});
  kept_ = std::move(other.kept_);
  finishes_ = std::move(other.finishes_);
  works_ = std::move(other.works_);
  return *this;
}

PendingTensor::~PendingTensor() { Detach(); }

void PendingTensor::Detach() {
  if (works_.empty()) return;
  std::vector<std::shared_ptr<void>> memory = {result_.storage()};
  for (const Tensor& kept : kept_) memory.push_back(kept.storage());
  for (Work& work : works_) work.Detach(memory);
  works_.clear();
}

void PendingTensor::Follow(Tensor result, Work work) {
  WEFT_CHECK(!has_finish(), "a collective cannot follow a local step");
  kept_.push_back(std::exchange(result_, std::move(result)));
  works_.push_back(std::move(work));
}

void PendingTensor::FinishWith(Finish finish) { finishes_.push_back(std::move(finish)); }

absl::StatusOr<Tensor> PendingTensor::Wait() {
  WEFT_CHECK(valid(), "Wait on an invalid PendingTensor");
  if (!works_.empty()) WEFT_RETURN_IF_ERROR(works_.back().Wait());
  while (!finishes_.empty()) {
    WEFT_ASSIGN_OR_RETURN(Tensor finished, finishes_.front()(result_));
    finishes_.pop_front();
    kept_.push_back(std::exchange(result_, std::move(finished)));
  }
  return result_;
}

}  // namespace weft
