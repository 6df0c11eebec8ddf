// Launcher and rank of this process, according to environment variables. Needs no MPI.
//
// Thread safety: any thread, while none changes the environment (getenv).
#pragma once

#include <optional>

#include <absl/functional/function_ref.h>

namespace weft {

// Program that started the ranks of a run.
enum class Launcher {
  kNone,     // A single process.
  kOpenMpi,  // mpirun of Open MPI, also in a Slurm job.
  kSlurm,    // srun.
  kPmix,     // Another launcher that implements PMIx.
  kHydra,    // mpiexec of MPICH or Intel MPI.
};

// Variable that `weft launch` sets for the ranks: its command line up to the program, "weft launch -n 2 --".
inline constexpr const char* kLaunchCommandVariable = "WEFT_LAUNCH_COMMAND";
// Variable that `weft launch` sets for the ranks of every attempt but the first.
inline constexpr const char* kLaunchRestartVariable = "WEFT_LAUNCH_RESTART";

struct LaunchEnvironment {
  Launcher launcher = Launcher::kNone;
  std::optional<int> rank;        // Unset without a launcher.
  std::optional<int> ranks;       // Processes that were started together. Unset if unknown.
  std::optional<int> node_cpus;   // CPUs of this node that the job may use. Set with kSlurm only.
  bool uses_weft_launch = false;  // `weft launch` started mpirun. Set with kOpenMpi only.
};

// `variable` returns the value of an environment variable, or null.
LaunchEnvironment ReadLaunchEnvironment(absl::FunctionRef<const char*(const char*)> variable);
// Reads the environment of this process.
LaunchEnvironment ReadLaunchEnvironment();

}  // namespace weft
