// Report of the planner: candidates, ranked, and their format as text.
//
// Pure. Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/train/planner/memory_forecast.h"
#include "src/train/planner/replay.h"

namespace weft {

struct MeshSize {
  int64_t replicate = 1, shard = 1, context = 1;

  int64_t ranks() const { return replicate * shard * context; }
  std::string Name() const;   // "2 x 4", or "2 x 4 x 2" with context parallelism.
  std::string Kind() const;   // "FSDP", "HSDP", "DDP", "one rank".
  std::string Flags() const;  // "--dp-replicate 2 --dp-shard 4".
};

// All meshes of `ranks` ranks whose context axis has `context` ranks. REQUIRES: context divides ranks.
std::vector<MeshSize> AllMeshes(int64_t ranks, int64_t context);

struct Candidate {
  MeshSize mesh;
  std::string error;  // Why it is impossible or does not fit; empty: it fits.
  // Set if the mesh is possible.
  std::optional<ReplayResult> step;
  MemoryForecast memory;
  int64_t tokens = 0;  // Of one step.

  bool fits() const { return error.empty() && step.has_value(); }
  double tokens_per_s() const { return static_cast<double>(tokens) / step->step_ms * 1e3; }
};

// Candidates that fit first, the most tokens per second first; of equals, the one with less memory.
void Rank(std::vector<Candidate>& candidates);

struct PlanReport {
  std::string model;
  std::string batch;
  std::string machine;
  std::string costs;
  std::vector<std::string> assumptions;
  std::vector<Candidate> candidates;  // Ranked.
  std::string command;                // Of the best candidate; empty if none fits.
};

// Lines of at most 80 columns, except for the command.
std::string FormatText(const PlanReport& report);

}  // namespace weft
