// `weft launch`: runs `weft train` on the ranks of mpirun, and again from its last checkpoint after a
// failure.
#pragma once

#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/launch/launch.h"
#include "weft/train/config.h"

namespace weft {

struct LaunchCommand {
  LaunchOptions options;
  std::vector<std::string> program;  // The arguments of every rank, "train" first.
  CheckpointConfig checkpoint;       // The checkpoint flags among them.
  std::string before_program;        // The command line before them, for a shell: "weft launch -n 2 --".
};

// Arguments that a restart adds to those of the user.
//
// Note [Checkpoint of a restart]
// Problem: `--resume auto` takes the newest checkpoint in the folder, or starts at step 0 if there is none.
//   Neither is right if the user has named another checkpoint, and a rank dies before the first save. The
//   first is wrong if an earlier run has saved in the folder, and the user did not ask to go on from it.
// Rule: a restart adds `--resume auto` if the newest checkpoint differs from that before the launch. It also
//   does if the folder had no checkpoint then, and the user gave no `--resume`.
// Why it suffices: only the ranks of this launch save in the folder. In the other cases the user's own
//   arguments start where the first attempt started. If ranks run on other hosts, a folder that is missing
//   here may exist there: there is no restart then if the user has named a checkpoint, as the run could go
//   back to it from a later one.
// Without the second part: a run refuses the metrics that the first attempt has left.
class RestartArguments {
 public:
  // Finds the newest checkpoint before the launch. `ranks_are_local`: they see the folders of this host.
  RestartArguments(CheckpointConfig checkpoint, bool ranks_are_local);
  // The arguments, from the newest checkpoint now. Errors: kNotFound (it is not known if there is one).
  absl::StatusOr<std::vector<std::string>> operator()() const;

 private:
  // The newest checkpoint: its name, and the number and time of its folder, which a second save of the step
  // changes. Empty: there is none.
  std::string Newest() const;
  CheckpointConfig checkpoint_;
  bool ranks_are_local_;
  std::string newest_before_;
};

// Returns the exit code for the user. Errors: those of Launch.
absl::StatusOr<int> RunLaunchCommand(const LaunchCommand& command);

}  // namespace weft
