// How this process was started, as far as environment variables tell: before MPI_Init, and without MPI.
#pragma once

#include <optional>

#include <absl/functional/function_ref.h>

namespace weft {

// What started the ranks of a run.
enum class Starter {
  kNone,     // A single process.
  kOpenMpi,  // mpirun of Open MPI, also in a Slurm job.
  kSlurm,    // srun.
  kPmix,     // Another launcher that implements PMIx.
};

struct LaunchEnvironment {
  Starter starter = Starter::kNone;
  std::optional<int> rank;       // Unset without a starter.
  std::optional<int> ranks;      // Processes that the starter started together, if it tells.
  std::optional<int> node_cpus;  // Of srun: CPUs of this node that the job may use, if it tells.
};

// `variable` returns the value of an environment variable, or null.
LaunchEnvironment ReadLaunchEnvironment(absl::FunctionRef<const char*(const char*)> variable);
// Of this process.
LaunchEnvironment ReadLaunchEnvironment();

}  // namespace weft
