#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tests/comm/random_programs/random_program.h"
#include "tests/comm/random_programs/seeded_random.h"

namespace weft::testing {
namespace {

ProgramOp DrawOp(SeededRandom& random) {
  using Kind = ProgramOp::Kind;
  ProgramOp op{};
  op.kind = random.OneOf({Kind::kGatherImage, Kind::kGatherImage, Kind::kGatherDelta, Kind::kReduceGradients,
                          Kind::kReduceGradients, Kind::kAllReduce, Kind::kExchange, Kind::kStridedExchange,
                          Kind::kShift, Kind::kBroadcast, Kind::kBarrier, Kind::kMessages});
  // No bf16: its sums depend on the node map. Other tests cover it.
  op.dtype = random.OneOf({DType::kF32, DType::kF32, DType::kF16, DType::kI32, DType::kI64});
  if (op.kind == Kind::kGatherDelta) op.dtype = DType::kF32;
  op.priority = random.OneOf({Priority::kCritical, Priority::kPrefetch, Priority::kReduce, Priority::kBulk});
  op.count = random.OneOf<int64_t>({0, 1, 2, 31, 64, 257, 600});
  op.uneven = random.Chance(40);
  op.node_memory = op.kind == Kind::kGatherImage || op.kind == Kind::kGatherDelta || random.Chance(75);
  op.image = static_cast<int>(random.Between(0, ProgramOp::kImages - 1));
  op.whole_world = random.Chance(40);
  op.shared = random.Chance(40);
  op.wire_compression = random.OneOf({WireCompression::kNone, WireCompression::kLossless});
  op.root = static_cast<int>(random.Between(0, 1 << 20));
  op.in_ranges = op.node_memory && random.Chance(40);
  // Several parts of a relayed all-reduce, and more slices than a receive ring has.
  const bool is_reduction = op.kind == Kind::kReduceGradients || op.kind == Kind::kAllReduce;
  if (is_reduction && random.Chance(20)) op.count *= 8;
  return op;
}

// The nodes of the ranks, numbered in the order of their lowest ranks.
std::vector<int> InOrderOfLowestRanks(std::vector<int> node_of_rank) {
  std::vector<int> numbers(node_of_rank.size(), -1);  // By drawn node.
  int count = 0;
  for (int& node : node_of_rank) {
    int& number = numbers[static_cast<size_t>(node)];
    if (number < 0) number = count++;
    node = number;
  }
  return node_of_rank;
}

// Places of `ranks` ranks on at most as many nodes as a map with `per_node` ranks on each has: consecutive,
// dealt round robin, or at random.
std::vector<int> DrawNodes(int ranks, int per_node, SeededRandom& random) {
  const NodeMap consecutive = NodeMap::RanksPerNode(ranks, per_node);
  const int nodes = consecutive.node_count();
  std::vector<int> node_of_rank;
  switch (random.Between(0, 3)) {
    case 0:
      for (int rank = 0; rank < ranks; ++rank) node_of_rank.push_back(rank % nodes);
      return node_of_rank;
    case 1:
      for (int rank = 0; rank < ranks; ++rank)
        node_of_rank.push_back(static_cast<int>(random.Between(0, nodes - 1)));
      return InOrderOfLowestRanks(std::move(node_of_rank));
    default:
      return consecutive.node_of_rank;
  }
}

int DivisorOf(int number, SeededRandom& random) {
  std::vector<int> divisors;
  for (int i = 1; i <= number; ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return divisors[static_cast<size_t>(random.Between(0, static_cast<int64_t>(divisors.size()) - 1))];
}

}  // namespace

std::vector<ProgramMessage> MessagesOf(const ProgramOp& op, int index, int ranks) {
  SeededRandom random(static_cast<uint64_t>(op.root));
  const auto rank = [&] { return static_cast<int>(random.Between(0, ranks - 1)); };
  const int first_tag = 8 * index;
  std::vector<ProgramMessage> messages;
  for (int i = 0; i < 4; ++i) {
    // Some have equal ends and tags, and keep their order. Sizes are not multiples of slices.
    const int64_t bytes = op.count * random.Between(0, 9);
    messages.push_back({rank(), rank(), first_tag + static_cast<int>(random.Between(0, 2)), bytes, false});
  }
  const int to = rank();
  for (int i = 0; i < 2; ++i) messages.push_back({rank(), to, first_tag + 3, op.count, true});
  return messages;
}

std::string Program::ToString() const {
  const bool is_consecutive = std::is_sorted(nodes.node_of_rank.begin(), nodes.node_of_rank.end());
  const std::string places =
      is_consecutive ? "" : absl::StrCat(" (", absl::StrJoin(nodes.node_of_rank, " "), ")");
  return absl::StrCat("seed ", seed, ": ", nodes.size(), " ranks on ", nodes.node_count(), " nodes", places,
                      ", share domain ", ToAbsl(Name(engine.share_domain.value_or(ShareDomain::kAuto))), ", ",
                      nodes.size() / shard_size, " x ", shard_size, ", ", ops.size(), " operations");
}

Program DrawProgram(uint64_t seed, int max_ranks) {
  SeededRandom random(seed);
  Program program;
  program.seed = seed;
  const int ranks = static_cast<int>(random.Between(2, max_ranks));
  const int per_node = static_cast<int>(random.Between(1, ranks));
  program.shard_size = DivisorOf(ranks, random);
  program.engine.timeout = absl::Seconds(60);
  program.engine.slice_bytes = random.OneOf<int64_t>({64, 256, 1024});
  program.engine.piece_bytes = random.OneOf<int64_t>({64, 512, 4096});
  program.engine.lane_window_bytes = program.engine.slice_bytes * random.Between(1, 4);
  program.engine.yield_window_bytes = program.engine.slice_bytes * random.Between(1, 3);
  program.engine.background_window_bytes = program.engine.slice_bytes * random.Between(1, 4);
  const int64_t ops = random.Between(4, 40);
  for (int64_t i = 0; i < ops; ++i) program.ops.push_back(DrawOp(random));
  program.engine.reduce_fan_in = random.OneOf<int64_t>({1, 2, 3, 32});
  program.engine.reduce_window_bytes = program.engine.slice_bytes * random.Between(1, 20);
  const int64_t numa_nodes = random.Between(1, 3);
  for (int rank = 0; rank < ranks; ++rank)
    program.nodes.numa_of_rank.push_back(static_cast<int>(random.Between(0, numa_nodes - 1)));
  program.engine.share_domain = random.OneOf({ShareDomain::kNode, ShareDomain::kNuma, ShareDomain::kNuma});
  program.engine.max_budget_bytes = program.engine.slice_bytes * random.OneOf<int64_t>({1, 8, 64, 1 << 16});
  program.engine.max_run_bytes = program.engine.slice_bytes * random.OneOf<int64_t>({1, 4, 16});
  program.engine.relaying = random.OneOf({Relaying::kWhereItPays, Relaying::kAlways, Relaying::kAlways});
  program.nodes.node_of_rank = DrawNodes(ranks, per_node, random);
  return program;
}

SimOptions DrawMachine(uint64_t seed) {
  SeededRandom random(seed ^ 0x5eedULL);
  SimOptions machine;
  machine.seed = seed;
  machine.poll_ns = random.OneOf<int64_t>({1'000, 4'000});
  machine.jitter = random.OneOf({0.0, 1.0, 5.0, 20.0});
  machine.memory_speed = random.OneOf({0.05, 0.5, 8.0});
  machine.wire_speed = random.OneOf({0.02, 0.1, 1.25});
  machine.wire_latency_ns = random.OneOf<int64_t>({1'000, 20'000, 100'000});
  if (random.Chance(50)) machine.cross_domain_speed = random.OneOf({0.02, 0.2});
  if (random.Chance(25))
    machine.slow = {{static_cast<int>(random.Between(0, 15)), random.OneOf({3.0, 10.0})}};
  return machine;
}

}  // namespace weft::testing
