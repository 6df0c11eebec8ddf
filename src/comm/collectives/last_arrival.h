// The move of a small operation on one node by the rank that arrives last, and the word in node memory by
// which that rank publishes what it has moved.
//
// Note [Last arrival]
// Problem: if every rank moved its own part of a small collective, it would wait twice: until all ranks have
// arrived, and until all have read its input. A wait may end with a wake-up, which takes longer than the
// copy.
// Rule: the rank that publishes the operation last (Note [Arrivals]) moves everything: it copies or reduces
// all parts, and writes the outputs of all ranks. It then sets the operation's word, and wakes the others.
// The move is *immediate*: the thread that finds that its rank is the last one performs it, even if it only
// submits. Waking another thread would take longer.
// Why it suffices: that rank is running, and all inputs are there. A sum has the order of the canonical tree,
// whichever rank computes it. Once the word says that all outputs are written, no rank accesses another's
// buffers: the operation is *released*.
// Larger outputs: one core would take longer than all. The last rank then lets the others *claim* outputs,
// without waking those that sleep. A rank that runs claims its own output, and then others if one of its
// threads waits. When it has written an output, it counts this at its owner, for which the operation is then
// *ready*, and adds one to the count in the word. The last rank claims outputs until none is left: it waits
// for outputs alone that others are about to write. The rank that writes the last output wakes the others.
// A claim of an all-reduce is not an output but a part of all outputs, each of which has an owner. The
// operation is ready once all parts are written.
// Outputs that are too large for one rank: the last rank wakes the others, because its submission would take
// long, and its rank would be late for the next operation. It then claims outputs like the others, and
// writes its own before its submission returns.
// Ranks that share hardware threads do not claim small outputs: the system may take the thread from one that
// has, and a claim takes longer than to write the output.
// Outputs outside node memory: only their owners can write them. The word then says that these ranks move
// their own results, once the last one has moved those of the others. The operation is *released* when all
// ranks have consumed it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>

#include <absl/functional/function_ref.h>

#include "src/comm/phases/operation.h"

namespace weft {

// The largest data that one rank moves for all: that of all outputs (gathers, all-reduce) or of all inputs
// (reduce-scatter). To move as much in parts, the ranks of a node together take about as long for
// their tasks, doorbells and second wait as for the data.
inline int64_t MaxWholeBytes(const EngineOptions& options) { return 2 * options.piece_bytes; }

// The fewest bytes that a claim writes if one rank could move the data of all. For each claim, ranks exchange
// about three more cache lines and run one more task, which takes as long as to copy some tens of kilobytes.
inline int64_t LeastClaimedBytes(const EngineOptions& options) { return MaxWholeBytes(options) / 8; }

// The most bytes that a claim writes (gathers) or reads (reductions). The ranks of a node move larger ones in
// pieces, because a task of this size delays a more urgent one by tens of microseconds.
inline int64_t MaxClaimedBytes(const EngineOptions& options) { return 4 * options.piece_bytes; }

// The most bytes of the outputs (gathers, all-reduce) or inputs (reduce-scatter) of all ranks that they move
// by claims. Larger ones leave the caches, so that another way to write them is faster.
inline int64_t MaxClaimedTogetherBytes(const EngineOptions& options) { return 8 * MaxClaimedBytes(options); }

// The ranks that move what others own.
enum class ClaimRule : uint8_t {
  kLastRank,     // Those that wait and the one that arrived last, which begins at once.
  kWaitingRanks  // Those that wait.
};

// The unit that ranks claim.
enum class Claimed : uint8_t {
  kOutput,  // The output of a rank, for which the operation is ready once that is written.
  kPart     // The part of all outputs that a rank owns.
};

enum class Moved : uint8_t {
  kNothing = 1,       // The last rank is moving, or no rank is the last one yet.
  kForAll = 2,        // All outputs are valid.
  kForReachable = 3,  // The outputs in node memory are valid.
  kForNone = 4,       // Every rank moves its own result.
  kByClaims = 5       // Every rank writes the outputs that it claims.
};

// One rank's side of such an operation.
//
// Call order: the rank that arrived last calls MoveAsLast, LeaveToAll or OfferClaims. Each rank polls until
//   the outcome is known. It may then call MoveOwn, or MoveClaimed if outputs are claimed, and poll again.
// Lifetime: that of the operation, as tasks hold a pointer to it.
class LastArrival final : private TaskOwner, private WholeMove {
 public:
  // Issues `move`. Once it has run, publishes `outcome` and wakes the others. REQUIRES: this rank
  // arrived last.
  void MoveAsLast(OperationContext& context, Moved outcome, MoveSize size, std::function<void()> move);
  // Publishes that every rank moves its own result. REQUIRES: this rank arrived last.
  void LeaveToAll(OperationContext& context);
  // Lets the others claim outputs, and wakes them if this rank writes only its own. REQUIRES: this rank
  // arrived last; all outputs lie in node memory.
  void OfferClaims(OperationContext& context, ClaimRule rule);
  // Issues a move of this rank's own result.
  void MoveOwn(OperationContext& context, MoveSize size, std::function<void()> move);

  // Claims what a member owns, this rank first, and issues `move`, which writes that.
  // Claims what others own only if a thread waits or has waited, or by kLastRank. Returns false if it claims
  // nothing. REQUIRES: the outcome is kByClaims, Poll is true, and all ranks pass the same rule and the same
  // `claimed`.
  bool MoveClaimed(OperationContext& context, ClaimRule rule, Claimed claimed,
                   absl::FunctionRef<MoveSize(int member)> size_of, std::function<void(int member)> move);
  // True if all claims have been moved, or that of which this rank is the owner. REQUIRES: the same.
  static bool AreAllClaimsMoved(const OperationContext& context);
  static bool IsOwnOutputMoved(const OperationContext& context);

  // True if the outcome is known, and no move of this rank runs.
  bool Poll(const OperationContext& context);
  // The outcome. kNothing: this rank does not know it yet.
  Moved outcome() const { return outcome_; }
  // Adds the bootstrap ranks for which this one waits: those that are writing claimed outputs, or have not
  // claimed theirs; otherwise the last one, or all peers of the node if that has published nothing yet.
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const;

 private:
  // The operation's word. Lifetime: the node link and the placement of the context must outlive it.
  class Word {
   public:
    explicit Word(const OperationContext& context);
    // REQUIRES: this rank arrived last.
    void Publish(Moved moved) const;
    void PublishAndWakePeers(Moved moved) const;
    Moved moved() const;
    // The bootstrap rank that has published something. Nothing if none has.
    std::optional<int> publisher() const;
    // Claims that were written.
    int64_t claims_moved() const;
    // Counts that what `member` owns is written. Wakes `member` if that is its output,
    // and all peers if it is the last claim.
    void AddClaimMoved(int member, Claimed claimed) const;
    // Shows peers whether this rank writes what it has claimed.
    void ShowClaim(bool is_moving) const;
    bool IsMovingClaim(int member) const;

   private:
    int64_t value() const { return node_.Word(group_, sequence_); }
    void WakePeers() const;

    NodeLink& node_;
    const GroupPlacement& placement_;
    const NodeLink::LocalGroup group_;
    const uint64_t sequence_;
  };

  void OnTaskDone(int64_t ticket) override;
  void Run() const override { move_(); }
  void Issue(OperationContext& context, MoveSize size, bool is_immediate, std::function<void()> move);

  std::function<void()> move_;  // The move that runs.
  std::optional<Word> last_;    // Set while this rank, which arrived last, moves for others.
  std::optional<Word> claim_;   // Set while this rank writes what it has claimed.
  int claimed_member_ = 0;      // The owner of that.
  Claimed claimed_ = Claimed::kOutput;
  ClaimRule rule_ = ClaimRule::kLastRank;
  bool is_moving_ = false;  // A move runs.
  Moved outcome_ = Moved::kNothing;
};

}  // namespace weft
