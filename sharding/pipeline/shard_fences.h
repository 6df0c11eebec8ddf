// Keeps those who read shards in place apart from those who write them.
//
// Note [Shards in place]
// The ranks of a shard group hold one block of node memory; each writes its own range (a loader or an
// optimizer does in fp32; in a narrower dtype a cast of the rank's master, once in each pass), and reads all
// of it. Time is cut into *passes*, each from when shards may be written to when they may be written again.
// Two barriers of the group order it, which are flags in node memory, and move no data:
//
//   written   Submitting it says "I have written my range", waiting for it waits for the others to say so. A
//             forward submits one for all groups; nobody waits for it before they need a group, and then for
//             the slowest *writer* only: ranks do not wait for each other's forward. A group that is
//             unsharded outside of it, before, submits one for itself, so that it can be used while other
//             groups are still being written. Until the pass ends, a group needs no other. Where replicas
//             share the optimizer, each group has one of its own, which comes after what other replicas
//             write.
//   read      Submitting it says "I read nothing any more in this pass": groups are resharded. FinishBackward
//             of the context waits for the others to say so, and only then are shards written.
//
// Nothing else is needed. A barrier is *ready* when all ranks have submitted it, and a flag that is seen
// brings with it all that its rank wrote before, so a flag that comes late makes a rank wait, and none read
// too early. Ranks that skip a block submit the same barriers, as these belong to passes and not to blocks.
// After an error nobody reads or writes before ResetAfterError, which all ranks enter having left their pass,
// and which begins a new one. A rank that goes away leaves its range to the others: the block stays until the
// last of them has let go.
//
// Thread safety: none. Collective: as the barriers that it submits, on the lane of all-gathers.
// Lifetime: the context must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <absl/status/status.h>

#include "weft/sharding/comm_context.h"

namespace weft {

class ShardFences {
 public:
  explicit ShardFences(CommContext& context) : context_(context) {}

  // This rank has written all its shards. Nothing happens where it has said so in this pass.
  void EndWriting();
  // What a reader of the group must wait for; null: nothing. `seen_pass`: the last pass in which it asked.
  // `after`: what this rank's range is written after, beside its owner.
  std::shared_ptr<Work> Written(const std::string& group, uint64_t& seen_pass, const Work* after);

  // Counts the times in which ranks may write their ranges.
  uint64_t pass() const { return pass_; }

  // This rank reads no shards any more.
  void EndReading();
  // Until no rank does: then a new pass begins, and shards may be written. After EndReading.
  absl::Status AwaitReaders();

  // After an error, on all ranks.
  void ResetAfterError();

 private:
  CommContext& context_;
  uint64_t pass_ = 1;
  std::shared_ptr<Work> written_;  // Of all groups in this pass; null before EndWriting.
  Work read_;
};

}  // namespace weft
