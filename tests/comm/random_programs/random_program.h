// Random programs of collectives, similar to training. All ranks draw the same program from a seed. A run
// checks every result bit by bit against the canonical tree.
//
// Each rank sleeps, waits and frees memory at random times of its own. Programs use all features of the
// engine: lanes over crossing groups, priorities, `after`, gates, uneven, empty and strided parts, parts in
// ranges, and memory inside and outside the node heap. The ranks of a node are consecutive, dealt round
// robin, or drawn at random.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "src/comm/links/credit_scheduler.h"
#include "weft/comm/comm_engine.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {

// Rules for callers of the engine. Tests break each rule on purpose, and expect that some schedule fails.
struct ProgramRules {
  // If false, buffers are freed as soon as the operation is *ready*.
  bool free_after_release = true;
  // If false, an all-reduce is submitted when its reduce-scatter is *ready*.
  bool submit_in_program_order = true;
  // If false, a gather fills an image that peers may still read.
  bool gate_images = true;
  // Rules of the engine itself.
  CreditRules credit_rules = {};
};

// A deviation of one rank from the program.
struct ProgramMistake {
  enum class Kind : uint8_t { kOp, kCount, kDType, kOrder };
  Kind kind;
  int rank;
};

struct ProgramOp {
  enum class Kind : uint8_t {
    kGatherImage,
    kGatherDelta,
    kReduceGradients,
    kAllReduce,
    kExchange,
    kStridedExchange,
    kShift,
    kBroadcast,
    kBarrier,
    kMessages
  };
  static constexpr int kImages = 2;
  Kind kind;
  DType dtype;
  Priority priority;
  int64_t count;     // Elements of a part, or of the whole. Upper bound for strided parts.
  bool uneven;       // Parts differ, and some are empty.
  bool node_memory;  // If false, the engine stages the buffers.
  int image;         // kGatherImage: number of the image that it fills.
  bool whole_world;  // Gathers: over all ranks, on a lane of their own. If false, over the shard group.
  bool shared;       // kGatherImage: into one image for each node.
  WireCompression wire_compression;
  int root;        // kBroadcast: root. kShift: distance on the ring. kMessages: draws their ranks.
  bool in_ranges;  // Gathers and reductions: each part is a list of ranges. REQUIRES: node_memory.
};

// A point-to-point message of a kMessages. The ranks between which there is none submit nothing.
struct ProgramMessage {
  int from;
  int to;
  int tag;
  int64_t bytes;
  bool any_source;  // The receive accepts any rank. Two such messages of one tag go to one rank.
};
std::vector<ProgramMessage> MessagesOf(const ProgramOp& op, int index, int ranks);

struct Program {
  uint64_t seed = 0;
  NodeMap nodes;
  int shard_size = 1;
  EngineOptions engine;
  std::vector<ProgramOp> ops;

  // "seed 7: 12 ranks on 3 nodes, 3 x 4, 31 operations".
  std::string ToString() const;
};

// Draws a program of at most `max_ranks` ranks.
Program DrawProgram(uint64_t seed, int max_ranks = 16);
// Draws the simulated machine that runs the program of a seed.
SimOptions DrawMachine(uint64_t seed);

struct ProgramOutcome {
  int64_t operations = 0;  // Operations that this rank has finished.
};

// By operation: the ranks that have submitted it. All ranks of a run share it.
using ProgramArrivals = std::vector<int>;

// Runs the program on one rank. Errors: kDataLoss (a wrong result, or a barrier that has not waited for all
// ranks; names the operation), kInternal (a window
// was exceeded), and the errors of the engine.
absl::Status RunProgram(Bootstrap& bootstrap, const Program& program, const ProgramRules& rules,
                        const ProgramMistake* mistake, ProgramOutcome& outcome, ProgramArrivals& arrivals);

// Runs the program on simulated ranks.
struct ScheduleReport {
  SimReport simulation;
  int64_t operations = 0;  // Finished operations of all ranks.
  absl::Status status() const { return simulation.status(); }
};
ScheduleReport RunSchedule(const Program& program, const SimOptions& machine, const ProgramRules& rules = {},
                           const ProgramMistake* mistake = nullptr);

}  // namespace weft::testing
