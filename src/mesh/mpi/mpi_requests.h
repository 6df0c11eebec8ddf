// MPI requests that are tested together.
//
// Each test of a request that is not done makes Open MPI ask the system for every socket: with many requests
// under way, testing one by one spends most of a progress thread's time there.
//
// Thread safety: none. Lifetime: requests that are still under way stay with MPI; take them out first.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>
#include <mpi.h>

namespace weft::internal {

class MpiRequests {
 public:
  using Id = uint64_t;
  struct Outcome {
    absl::Status status;  // kInternal: what MPI says.
    MPI_Status mpi;       // Meaningful if `status` is OK.
  };

  // Makes a call that starts a request. Errors: kInternal (what MPI says of it).
  absl::StatusOr<Id> Start(std::string_view name, absl::FunctionRef<int(MPI_Request*)> call);
  // Finds out which requests are done, in at most so many looks while none is. Errors: kInternal (MPI cannot
  // tell; of a request that failed, Take says so).
  absl::Status Poll(int looks);
  // Once, if the request was done at the last Poll: it is then forgotten.
  std::optional<Outcome> Take(Id id);
  // Asks MPI to give up a receive that is not known to be done, and looks once whether it is over. What MPI
  // has matched with a message goes on.
  std::optional<Outcome> Cancel(Id id);
  // Forgets a request, and returns its handle; MPI_REQUEST_NULL if it was done at the last Poll.
  MPI_Request Remove(Id id);

 private:
  void Forget(size_t place);

  Id next_ = 1;
  // Under way, in the same places.
  std::vector<MPI_Request> handles_;
  std::vector<Id> ids_;
  absl::flat_hash_map<Id, size_t> places_;
  absl::flat_hash_map<Id, Outcome> outcomes_;
  // Of MPI_Testsome.
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace weft::internal
