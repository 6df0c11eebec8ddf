#include "src/mesh/mpi/mpi_requests.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "src/mesh/mpi/mpi_session.h"
#include "weft/core/status.h"

namespace weft::internal {
absl::StatusOr<MpiRequests::Id> MpiRequests::Start(std::string_view name,
                                                   absl::FunctionRef<int(MPI_Request*)> call) {
  MPI_Request handle = MPI_REQUEST_NULL;
  WEFT_RETURN_IF_ERROR(MpiStatus(call(&handle), name));
  slots_.emplace(next_, handles_.size());
  handles_.push_back(handle);
  ids_.push_back(next_);
  return next_++;
}

absl::Status MpiRequests::Poll(int max_tests) {
  indices_.resize(handles_.size());
  statuses_.resize(handles_.size());
  int done = 0;
  int code = MPI_SUCCESS;
  for (int test = 0; test < max_tests && done == 0 && code == MPI_SUCCESS; ++test) {
    code = MPI_Testsome(static_cast<int>(handles_.size()), handles_.data(), &done, indices_.data(),
                        statuses_.data());
  }
  const bool some_failed = code == MPI_ERR_IN_STATUS;
  if (!some_failed) WEFT_RETURN_IF_ERROR(MpiStatus(code, "MPI_Testsome"));
  if (done == MPI_UNDEFINED) return absl::OkStatus();  // There were no requests.
  indices_.resize(static_cast<size_t>(done));
  for (size_t i = 0; i < indices_.size(); ++i) {
    const int outcome = some_failed ? statuses_[i].MPI_ERROR : MPI_SUCCESS;
    if (outcome == MPI_ERR_PENDING) continue;
    outcomes_.emplace(ids_[static_cast<size_t>(indices_[i])],
                      Outcome{MpiStatus(outcome, "MPI_Testsome"), statuses_[i]});
  }
  // Erase in descending order, because Erase moves the last request to the erased slot.
  std::sort(indices_.begin(), indices_.end(), std::greater<>());
  for (const int index : indices_) {
    const auto slot = static_cast<size_t>(index);
    if (outcomes_.contains(ids_[slot])) Erase(slot);
  }
  return absl::OkStatus();
}

std::optional<MpiRequests::Outcome> MpiRequests::Take(Id id) {
  if (outcomes_.empty()) return std::nullopt;  // Saves look-ups: most requests in flight are incomplete.
  const auto found = outcomes_.find(id);
  if (found == outcomes_.end()) {
    WEFT_CHECK(slots_.contains(id), "Take of a request that is not in flight");
    return std::nullopt;
  }
  Outcome outcome = std::move(found->second);
  outcomes_.erase(found);
  return outcome;
}

std::optional<MpiRequests::Outcome> MpiRequests::Cancel(Id id) {
  if (outcomes_.contains(id)) return Take(id);
  const size_t slot = slots_.at(id);
  MPI_Cancel(&handles_[slot]);
  int done = 0;
  Outcome outcome;
  outcome.status = MpiStatus(MPI_Test(&handles_[slot], &done, &outcome.mpi), "MPI_Test (canceled)");
  if (outcome.status.ok() && done == 0) return std::nullopt;
  Erase(slot);
  return outcome;
}

MPI_Request MpiRequests::Remove(Id id) {
  if (outcomes_.erase(id) > 0) return MPI_REQUEST_NULL;
  const size_t slot = slots_.at(id);
  const MPI_Request handle = handles_[slot];
  Erase(slot);
  return handle;
}

void MpiRequests::Erase(size_t slot) {
  slots_.erase(ids_[slot]);
  const size_t last = handles_.size() - 1;
  if (slot != last) {
    handles_[slot] = handles_[last];
    ids_[slot] = ids_[last];
    slots_[ids_[slot]] = slot;
  }
  handles_.pop_back();
  ids_.pop_back();
}

}  // namespace weft::internal
