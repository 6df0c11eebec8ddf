// One rank's run of a random program. Implementation detail of RunProgram.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tests/comm/random_programs/program_values.h"
#include "tests/comm/random_programs/random_program.h"
#include "tests/comm/random_programs/seeded_random.h"
#include "tests/comm/support/engine_fixture.h"
#include "tests/comm/support/message_sweep.h"
#include "tests/comm/support/strided_parts.h"
#include "weft/memory/shared_block.h"

namespace weft::testing {

class ProgramRunner {
 public:
  ProgramRunner(Bootstrap& bootstrap, const Program& program, const ProgramRules& rules,
                const ProgramMistake* mistake, ProgramArrivals& arrivals)
      : bootstrap_(bootstrap),
        program_(program),
        rules_(rules),
        mistake_(mistake != nullptr && mistake->rank == bootstrap.rank() ? mistake : nullptr),
        arrivals_(arrivals),
        random_(program.seed * 1000003 + static_cast<uint64_t>(bootstrap.rank())),
        layouts_(program.seed * 7 + static_cast<uint64_t>(bootstrap.rank())) {}
  // Destroys the Works, then the engine, then the buffers: the memory of failed operations must outlive the
  // engine.
  ~ProgramRunner() {
    for (const auto& live : live_) {
      live->work = Work();
      live->continued = Work();
      live->readers_done = Work();
      for (Live::Message& message : live->messages) message.work = Work();
    }
    if (fixture_) fixture_->engine.reset();
  }

  absl::Status Run(ProgramOutcome& outcome);

 private:
  // An operation in flight: one collective, or a reduce-scatter and the all-reduce of its result.
  struct Live {
    int op;
    std::vector<int64_t> parts;
    std::shared_ptr<const PartRanges> ranges;  // Null: the parts lie end to end.
    TestBuffer input, output;                  // kGatherDelta: the input is the delta base.
    Work readers_done;  // Barrier of the ranks that share an image, submitted after they have read it.
    std::vector<StridedPart> sent, received;  // By world rank.
    Work work, continued;
    std::optional<int> shifted_from;
    struct Message {
      ProgramMessage program;
      bool is_receive;
      std::vector<std::byte> own;  // Memory of a message outside node memory.
      Buffer node;
      Work work;
      std::byte* data() { return node ? node.data() : own.data(); }
    };
    std::deque<Message> messages;  // This rank's ends of a kMessages.
    bool continue_later = false;
    bool checked = false;
  };

  absl::Status Open();
  absl::StatusOr<LaneId> AddLane(const ProcessGroup& group, LanePurpose purpose) {
    return engine().AddLane(group, purpose);
  }
  CommEngine& engine() { return *fixture_->engine; }
  absl::StatusOr<TestBuffer> MakeBuffer(const ProgramOp& op, int64_t count) {
    return TestBuffer::Make(*fixture_->pool, op.node_memory, op.dtype, count);
  }
  OpOptions Options(int index, const ProgramOp& op) {
    return {op.priority, static_cast<uint64_t>(index), absl::StrCat("op ", index), op.wire_compression,
            nullptr};
  }

  absl::Status Submit(int index);
  absl::Status SubmitGather(int index, const ProgramOp& op, Live& live);
  absl::Status SubmitSharedGather(int index, const ProgramOp& op, Live& live);
  absl::Status SubmitDeltaGather(int index, const ProgramOp& op, Live& live);
  absl::Status SubmitReduction(int index, const ProgramOp& op, Live& live);
  // Scatters the parts, if the operation's parts lie in ranges.
  void DrawRanges(int index, const ProgramOp& op, Live& live) {
    if (op.in_ranges)
      live.ranges = ScatterParts(live.parts, program_.seed * 31 + static_cast<uint64_t>(index));
  }
  // The same, and moves the elements of a buffer, which lie end to end, to their ranges.
  void ScatterBuffer(int index, const ProgramOp& op, Live& live, TestBuffer& buffer);
  void Continue(Live& live);
  void ContinueReadyReductions();
  absl::Status SubmitAllReduce(int index, const ProgramOp& op, Live& live);
  absl::Status SubmitExchange(int index, const ProgramOp& op, Live& live);
  absl::Status MakeStridedParts(int index, const ProgramOp& op, Live& live);
  absl::Status SubmitStridedExchange(int index, const ProgramOp& op, Live& live);
  absl::Status SubmitShift(int index, const ProgramOp& op, Live& live);
  absl::Status SubmitBroadcast(int index, const ProgramOp& op, Live& live);
  absl::Status SubmitMessages(int index, const ProgramOp& op, Live& live);
  absl::Status AddMessage(const ProgramMessage& program, bool is_receive, const ProgramOp& op, Live& live);
  absl::Status CompleteMessages(Live& live);
  absl::Status FinishOne(size_t index);
  absl::Status Complete(Live& live);
  absl::Status Check(Live& live);
  // Checks a gathered output.
  absl::Status CheckGathered(const Live& live, const ProgramOp& op, const std::byte* output);
  absl::Status CheckStrided(Live& live);
  absl::Status CheckUpdatedBase(Live& live);
  absl::Status CheckBounds(ProgramOutcome& outcome);

  void Fill(int index, const ProgramOp& op, int64_t begin, int64_t count, std::byte* memory) {
    ProgramValues::Fill(index, op.dtype, bootstrap_.rank(), begin, count, memory);
  }

  // For an operation that gathers into an image: the index of the image in shared_images_, the image, and the
  // last gather into it.
  size_t SharedImage(const ProgramOp& op) const {
    const int index = op.image + (op.whole_world ? ProgramOp::kImages : 0);
    return static_cast<size_t>(index);
  }
  const std::byte* ImageOf(const ProgramOp& op) const {
    return op.shared ? shared_images_[SharedImage(op)].data() : images_[static_cast<size_t>(op.image)].data();
  }
  Live*& LastFiller(const ProgramOp& op) {
    return op.shared ? last_shared_filler_[SharedImage(op)] : last_filler_[static_cast<size_t>(op.image)];
  }

  Bootstrap& bootstrap_;
  const Program& program_;
  const ProgramRules rules_;
  const ProgramMistake* mistake_;
  ProgramArrivals& arrivals_;
  SeededRandom random_;
  std::mt19937_64 layouts_;
  std::optional<EngineFixture> fixture_;
  ProcessGroup world_, shard_, replicate_;
  std::optional<ProgramValues> values_;
  ProcessGroup shard_of_node_, node_;  // The ranks that share images with this rank.
  LaneId shard_readers_lane_, node_readers_lane_;
  std::vector<SharedBlock> shared_images_;  // Those of the shard group, then those of all ranks.
  std::vector<Live*> last_shared_filler_ = std::vector<Live*>(2 * ProgramOp::kImages, nullptr);
  LaneId gather_lane_, world_gather_lane_, scatter_lane_, reduce_lane_, context_lane_, control_lane_;
  // Gathered images, which are filled repeatedly, and the last operation that filled each while it is in
  // flight.
  std::vector<Buffer> images_;
  std::vector<Live*> last_filler_ = std::vector<Live*>(ProgramOp::kImages, nullptr);
  std::deque<std::unique_ptr<Live>> live_;
};

}  // namespace weft::testing
