// Forecast of training runs: memory, bytes on the wire and time of a step for each mesh, without the ranks.
//
// The real engine and the real sharding schedule run on simulated ranks, which compute by sleeping. The costs
// of computation and copies are measured on this machine or given. docs/planning.md explains
// the model of the machine and how far its forecasts agree with runs.
//
// Thread safety: values and free functions. One call at a time with PlanOptions::measure, which keeps all
// cores busy and writes the file of costs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/sharding/schedule_rules.h"
#include "weft/train/config.h"

namespace weft {

// The link of one host to the others, for each direction.
struct LinkSpeed {
  double gigabits = 10;
  double latency_us = 50;

  // "100gbit:5us", "10gbit". Errors: kInvalidArgument (names the text, and the form or the limits: 1 Mbit/s
  // to 1000000 Gbit/s, and 1 s).
  static absl::StatusOr<LinkSpeed> Parse(std::string_view text);
  std::string ToString() const;
};

// "2tf", "80gf": floating-point operations in a second. Errors: kInvalidArgument.
absl::StatusOr<double> ParseFlops(std::string_view text);

struct PlanOptions {
  int64_t ranks = 1;
  int64_t hosts = 1;       // Ranks fill them evenly, in order.
  int64_t numa_nodes = 1;  // Of each host. Ranks are bound to them evenly, in order.
  // Bytes that a core reads from another NUMA node of its host, in 1e9 a second. Unset: half of the rate of
  // copies within one.
  std::optional<double> numa_gb_s;
  std::optional<int64_t> cores;      // Of each host. Unset: those of this machine.
  std::optional<double> memory_gib;  // Of each host. Unset: what is available on this machine.
  std::string link = "10gbit:50us";
  std::string flops;       // Of each core, in products of matrices. Empty: those of the file of costs.
  bool all_meshes = true;  // All meshes of the ranks. False: the one that the configuration names.
  bool measure = false;    // Measures the costs of the model first, and stores them.
  std::string costs_file;  // Empty: a file in the user's cache folder.
  bool json = false;
  // The arguments of `weft train` without its mesh, for the command to run.
  std::string train_arguments;
};

struct TrainingPlan {
  std::string report;  // Text of at most 80 columns, or JSON.
  bool fits = false;   // True if a mesh can run: the ranks fit into the memory of the hosts.
};

// REQUIRES: `config` has passed Validate.
// Errors: kInvalidArgument (the options, or a mesh that the configuration names and that is impossible),
//   kNotFound, kPermissionDenied, kUnavailable, kDataLoss, kUnimplemented (an input file, or the file of
//   costs).
absl::StatusOr<TrainingPlan> PlanTraining(const TrainConfig& config, const PlanOptions& options);

// A step of the mesh that the configuration names. Peaks are those of rank 0, as in the metrics of a run.
// Ranks need not fit into the memory of the hosts; PlanTraining checks that.
struct StepForecast {
  double step_ms = 0;
  double compute_ms = 0;            // If the rank has its cores for itself.
  double exposed_ms = 0;            // Waiting for communication, the mean over ranks.
  int64_t host_wire_bytes = 0;      // Sent by each host, the mean over hosts.
  int64_t peak_image_bytes = 0;     // Gathered weights.
  int64_t peak_gradient_bytes = 0;  // Full gradients.
};
// Simulates a step with a schedule's rules. Null: the built-in ones. REQUIRES and errors: as PlanTraining.
absl::StatusOr<StepForecast> ForecastStep(const TrainConfig& config, const PlanOptions& options,
                                          std::shared_ptr<const ScheduleRules> rules = nullptr);

}  // namespace weft
