#include "weft/mesh/launch_environment.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

namespace weft {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchEnvironment Read(const Variables& variables) {
  return ReadLaunchEnvironment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

const Variables kBatchScript = {
    {"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_CPUS_ON_NODE", "8"}};

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST(LaunchEnvironment, HasTheLauncherTheRankAndTheNumberOfRanks) {
  struct Row {
    const char* name;
    Variables variables;
    Launcher launcher;
    std::optional<int> rank;
    std::optional<int> ranks;
    std::optional<int> node_cpus;
  };
  const Variables task = With(kBatchScript, {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}});
  const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_RANK", "1"}};
  const Row rows[] = {
      {"alone", {}, Launcher::kNone, {}, {}, {}},
      {"mpirun", mpirun, Launcher::kOpenMpi, 1, 2, {}},
      {"script of a batch job", kBatchScript, Launcher::kNone, {}, {}, {}},
      {"mpirun in the script of a batch job", With(kBatchScript, mpirun), Launcher::kOpenMpi, 1, 2, {}},
      {"mpirun whose daemon srun started", With(task, mpirun), Launcher::kOpenMpi, 1, 2, {}},
      {"srun without MPI", task, Launcher::kSlurm, 3, 4, 8},
      {"srun --mpi=pmix", With(task, {{"PMIX_RANK", "3"}}), Launcher::kSlurm, 3, 4, 8},
      {"another PMIx launcher", {{"PMIX_RANK", "5"}}, Launcher::kPmix, 5, {}, {}},
      {"mpiexec of MPICH", {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}, Launcher::kHydra, 2, 4, {}},
      {"mpiexec of MPICH and Open MPI's library",
       {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"PMIX_RANK", "0"}},
       Launcher::kHydra,
       2,
       4,
       {}},
      {"mpiexec of MPICH whose daemons srun started",
       With(task, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}),
       Launcher::kHydra,
       5,
       8,
       {}},
      {"srun --mpi=pmi2", With(task, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}), Launcher::kSlurm, 3, 4, 8},
      {"values that are no numbers",
       {{"OMPI_COMM_WORLD_RANK", "x"}, {"PMIX_RANK", ""}},
       Launcher::kNone,
       {},
       {},
       {}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const LaunchEnvironment environment = Read(row.variables);
    EXPECT_EQ(environment.launcher, row.launcher);
    EXPECT_EQ(environment.rank, row.rank);
    EXPECT_EQ(environment.ranks, row.ranks);
    EXPECT_EQ(environment.node_cpus, row.node_cpus);
  }
}

TEST(LaunchEnvironment, TellsIfWeftLaunchStartedMpirun) {
  const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  const Variables launch = {{kLaunchCommandVariable, "weft launch -n 2 --"}};
  EXPECT_TRUE(Read(With(mpirun, launch)).uses_weft_launch);
  EXPECT_FALSE(Read(mpirun).uses_weft_launch);
  EXPECT_FALSE(Read(launch).uses_weft_launch);
}

}  // namespace
}  // namespace weft
