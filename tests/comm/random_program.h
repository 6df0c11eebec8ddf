// A training-like program of collectives drawn from a seed, the same for all ranks, and its run on one rank
// with every result checked bit by bit against the canonical tree.
//
// Each rank pauses, waits and frees memory at moments of its own. Programs use all that the engine has: lanes
// over crossing groups, priorities, `after`, gates, uneven, empty and strided parts, memory in and outside
// the node heap.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "weft/comm/comm_engine.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {

// Rules that callers of the engine keep. Breaking one on purpose shows that somebody notices.
struct ProgramRules {
  bool free_after_release = true;  // Else as soon as results are there.
  bool submit_in_program_order =
      true;                 // Else an all-reduce is submitted when its reduce-scatter is complete.
  bool gate_images = true;  // Else an image is gathered into while peers may still read it.
};

// What a rank does that others do not expect.
struct ProgramMistake {
  enum class Kind : uint8_t { kOp, kCount, kDType, kOrder };
  Kind kind;
  int rank;
};

struct ProgramOp {
  enum class Kind : uint8_t {
    kGatherImage,
    kGatherChanges,
    kReduceGradients,
    kAllReduce,
    kExchange,
    kStridedExchange,
    kShift,
    kBroadcast,
    kBarrier
  };
  static constexpr int kImages = 2;
  Kind kind;
  DType dtype;
  Priority priority;
  int64_t count;     // Elements of a part, or of the whole; of a strided part, the most.
  bool uneven;       // Parts differ, and some are empty.
  bool node_memory;  // Else staged by the engine.
  int image;         // kGatherImage: which of the images it fills,
  bool whole_world;  // and whether over all ranks, on a lane of its own, or over the shard group,
  bool shared;       // and whether into one image a node.
  WireCompression compression;
  int root;  // kBroadcast. kShift: how far, around the ring.
};

struct Program {
  uint64_t seed = 0;
  NodeMap nodes;
  int shard_size = 1;
  EngineOptions engine;
  std::vector<ProgramOp> ops;

  // "seed 7: 12 ranks on 3 nodes, 3 x 4, 31 operations".
  std::string ToString() const;
};

// At most `max_ranks` ranks.
Program DrawProgram(uint64_t seed, int max_ranks = 16);
// The machine that runs it.
SimOptions DrawMachine(uint64_t seed);

struct ProgramOutcome {
  int64_t operations = 0;  // Finished, on this rank.
  int64_t yielded_peak_bytes = 0;
};

// One rank's run. Errors: kDataLoss (a wrong result: names the operation), kInternal (a broken bound), and
// what the engine says.
absl::Status RunProgram(Bootstrap& bootstrap, const Program& program, const ProgramRules& rules,
                        const ProgramMistake* mistake, ProgramOutcome& outcome);

// All ranks, simulated.
struct ScheduleReport {
  SimReport simulation;
  int64_t operations = 0;  // Over all ranks.
  absl::Status status() const { return simulation.status(); }
};
ScheduleReport RunSchedule(const Program& program, const SimOptions& machine, const ProgramRules& rules = {},
                           const ProgramMistake* mistake = nullptr);

}  // namespace weft::testing
