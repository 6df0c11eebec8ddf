// What all collectives have in common: staging of memory that peers could not read, meeting the node's ranks,
// checking that they mean the same, and the end. What they do in between is theirs.
//
//   (stage input)? publish, meet peers, move data, (unstage output)?
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/comm/collectives/collective_plan.h"
#include "src/comm/collectives/operation.h"
#include "src/comm/collectives/streams.h"

namespace weft {

class Collective : public Operation {
 public:
  // What must lie in node memory for peers to read it.
  struct Sharing {
    bool input;
    bool output;
  };
  Collective(CollectivePlan plan, Sharing sharing) : plan_(std::move(plan)), sharing_(sharing) {}

  absl::StatusOr<Progress> Step(OperationContext& context) final;
  bool ready() const final { return stage_ == Stage::kDone; }
  bool drained() const final { return stage_ == Stage::kDone && MoveDrained(); }
  std::set<int> WaitsFor(const OperationContext& context) const final;

 protected:
  // Sees to it that peers find what they are to read in node memory; by default input and output, as
  // `Sharing` says.
  virtual absl::Status TakeMemory(OperationContext& context);
  // Copies something there before the operation is published, and counts it as copied.
  void AddStaging(OperationContext& context, RangeCopy copy, const std::byte* source, std::byte* target);
  // What peers see as this rank's input, where it is not the plan's.
  void ShareInput(const std::byte* memory) { plan_.input = memory; }
  // All peers of the node have published. `plan()` now names memory that peers can read where they must.
  virtual absl::Status BeginMove(OperationContext& context) = 0;
  virtual absl::StatusOr<bool> Move(OperationContext& context) = 0;
  virtual bool MoveComplete() const = 0;
  virtual bool MoveDrained() const = 0;
  virtual void AddAwaited(const OperationContext& context, std::set<int>& ranks) const = 0;

  const CollectivePlan& plan() const { return plan_; }
  // A peer's input and output, for ranks of this node. Valid from BeginMove on; null where it shares none.
  const std::byte* InputOf(const OperationContext& context, int member) const;
  const std::byte* OutputOf(const OperationContext& context, int member) const;
  // InputOf for every rank of this node, null for the others; by group rank.
  std::vector<const std::byte*> LocalInputs(const OperationContext& context) const;
  // Elements of a slice: of what travels between nodes, else of what is moved within the node at once.
  static int64_t SliceElements(const OperationContext& context, DType dtype);

 private:
  enum class Stage : uint8_t { kNew, kStaging, kMeeting, kMoving, kUnstaging, kDone };

  void Publish(OperationContext& context);
  absl::StatusOr<bool> Meet(OperationContext& context);
  absl::Status StartUnstaging(OperationContext& context);
  bool StepStaging(OperationContext& context);
  bool Staged() const;
  int64_t InputElements(const OperationContext& context) const;
  int64_t OutputElements(const OperationContext& context) const;

  CollectivePlan plan_;
  const Sharing sharing_;
  Stage stage_ = Stage::kNew;
  std::byte* caller_output_ = nullptr;
  Buffer staged_input_;
  Buffer staged_output_;
  std::deque<RangeStream> staging_;
  std::vector<std::optional<Descriptor>> met_;  // By group rank.
};
}  // namespace weft
