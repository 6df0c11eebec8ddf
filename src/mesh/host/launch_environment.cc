#include "weft/mesh/launch_environment.h"

#include <cstdlib>

#include <absl/strings/numbers.h>

namespace weft {

LaunchEnvironment ReadLaunchEnvironment(absl::FunctionRef<const char*(const char*)> variable) {
  const auto number = [&](const char* name) -> std::optional<int> {
    const char* text = variable(name);
    int value = 0;
    if (text == nullptr || !absl::SimpleAtoi(text, &value)) return std::nullopt;
    return value;
  };
  // Open MPI's variables come first, because mpirun in a Slurm job inherits the variables of the job.
  if (const std::optional<int> rank = number("OMPI_COMM_WORLD_RANK")) {
    return {Launcher::kOpenMpi,
            rank,
            number("OMPI_COMM_WORLD_SIZE"),
            {},
            variable(kLaunchCommandVariable) != nullptr};
  }
  // SLURM_STEP_NUM_TASKS tells a task of srun from the script of a batch job, which has SLURM_PROCID as well.
  const std::optional<int> tasks = number("SLURM_STEP_NUM_TASKS");
  const LaunchEnvironment hydra{Launcher::kHydra, number("PMI_RANK"), number("PMI_SIZE"), {}};
  // MPICH's mpiexec may start its daemons by srun, whose variables the ranks inherit. srun --mpi=pmi2 sets
  // PMI_SIZE to the number of its tasks.
  if (hydra.rank && hydra.ranks && tasks && hydra.ranks != tasks) return hydra;
  if (tasks && number("SLURM_PROCID")) {
    return {Launcher::kSlurm, number("SLURM_PROCID"), tasks, number("SLURM_CPUS_ON_NODE")};
  }
  if (hydra.rank) return hydra;  // Before PMIx: Open MPI sets PMIX_RANK in a process that it did not start.
  if (const std::optional<int> rank = number("PMIX_RANK")) return {Launcher::kPmix, rank, {}, {}};
  return {};
}

LaunchEnvironment ReadLaunchEnvironment() {
  return ReadLaunchEnvironment([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace weft
