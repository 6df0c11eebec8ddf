// One collective at one size, with the variants that run it once: weft's and Open MPI's.
//
// Lifetime: the arena must outlive its cases.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/mpi_baseline.h"
#include "bench/or_die.h"
#include "tests/support/rank_engine.h"
#include "weft/comm/comm_engine.h"
#include "weft/memory/node_heap.h"
#include "weft/memory/shared_block.h"
#include "weft/mesh/mpi_bootstrap.h"

namespace weft::bench {

// Objects that live as long as the program.
struct CollectiveArena {
  std::unique_ptr<Bootstrap> bootstrap = OrDie(MakeMpiBootstrap());
  testing::RankEngine rank =
      OrDie(testing::RankEngine::Make(*bootstrap, {}, {.segment_bytes = size_t{640} << 20}));
  MpiBaseline mpi;
  LaneId gathers = AddLane(LanePurpose::kAllGather);
  LaneId scatters = AddLane(LanePurpose::kReduceScatter);
  LaneId reductions = AddLane(LanePurpose::kAllReduce);
  LaneId exchanges = AddLane(LanePurpose::kContext);

  int ranks() const { return bootstrap->size(); }
  // Ranks of this rank's node, ascending.
  std::vector<int> NodeRanks() const;

 private:
  LaneId AddLane(LanePurpose purpose);
};

// The data are small integers, so that sums are exact in every order.
class CollectiveCase {
 public:
  using Variants = std::map<std::string, std::function<void()>>;

  CollectiveCase(std::string op, int bytes) : op_(std::move(op)), bytes_(bytes) {}
  virtual ~CollectiveCase() = default;
  CollectiveCase(const CollectiveCase&) = delete;
  CollectiveCase& operator=(const CollectiveCase&) = delete;

  bool Matches(const std::string& op, int bytes) const { return op == op_ && bytes == bytes_; }
  // Errors: an unknown name ends the program; the message lists the known ones.
  const std::function<void()>& Variant(const std::string& name) const;

 protected:
  Variants variants_;

 private:
  std::string op_;
  int bytes_;
};

// Creates a case, and runs weft and each variant of MPI once.
//
// Collective: all ranks.
// Errors: an unknown operation or different results end the program.
std::unique_ptr<CollectiveCase> MakeCase(CollectiveArena& arena, const std::string& op, int bytes);

}  // namespace weft::bench
