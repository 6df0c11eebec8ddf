// Set of MPI requests that one MPI_Testsome call tests together.
//
// Every test of an incomplete request makes Open MPI poll all of its sockets with system calls. With many
// requests in flight, separate tests would take most of a progress thread's time.
//
// Thread safety: none.
// Lifetime: the destructor leaves incomplete requests to MPI. Remove them first.
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
    absl::Status status;  // kInternal if the request failed; has MPI's error message.
    MPI_Status mpi;       // Valid if `status` is OK.
  };

  // Starts a request with `call`. `name` is the MPI function, for the error message.
  // Errors: kInternal (has MPI's error message).
  absl::StatusOr<Id> Start(std::string_view name, absl::FunctionRef<int(MPI_Request*)> call);
  // Tests all requests. Repeats the test, up to `max_tests` times in all, while no request is complete.
  // Errors: kInternal (the test itself failed). Take reports the error of a failed request.
  absl::Status Poll(int max_tests);
  // Returns the outcome of a request that was complete at the last Poll, and removes the request. nullopt if
  // it was not complete.
  std::optional<Outcome> Take(Id id);
  // Cancels a receive and tests it once. Returns its outcome, and removes it, if it is complete or canceled.
  // Returns nullopt if MPI has matched the receive with a message that is still in flight; the receive then
  // continues.
  std::optional<Outcome> Cancel(Id id);
  // Removes a request and returns its handle; MPI_REQUEST_NULL if it was complete at the last Poll.
  MPI_Request Remove(Id id);

 private:
  void Erase(size_t slot);

  Id next_ = 1;
  // Requests in flight: handles and ids at the same indices.
  std::vector<MPI_Request> handles_;
  std::vector<Id> ids_;
  absl::flat_hash_map<Id, size_t> slots_;      // Index into the two vectors.
  absl::flat_hash_map<Id, Outcome> outcomes_;  // Complete requests that Take has not returned yet.
  // Output of MPI_Testsome.
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace weft::internal
