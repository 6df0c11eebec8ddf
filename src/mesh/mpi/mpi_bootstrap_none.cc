// The build without MPI.
#include <memory>

#include "weft/mesh/mpi_bootstrap.h"

namespace weft {
namespace {

absl::Status NoMpi() {
  return absl::FailedPreconditionError(
      "this weft was built without MPI (WEFT_MPI=OFF): build it with MPI, or use MakeStoreBootstrap");
}

}  // namespace

MpiBootstrapOptions MpiBootstrapOptions::FromEnvironment() {
  MpiBootstrapOptions options;
  options.error = NoMpi();
  return options;
}
absl::StatusOr<std::unique_ptr<Bootstrap>> MakeMpiBootstrap(const MpiBootstrapOptions& /*options*/) {
  return NoMpi();
}
absl::StatusOr<std::unique_ptr<Bootstrap>> MakeMpiBootstrap() { return NoMpi(); }

}  // namespace weft
