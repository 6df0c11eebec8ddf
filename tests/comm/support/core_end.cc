#include "tests/comm/support/core_end.h"

#include <array>
#include <thread>
#include <utility>

#include "src/comm/collectives/operations.h"
#include "src/comm/links/shared_memory_link.h"
#include "src/comm/phases/data_task.h"
#include "tests/support/test_timeout.h"
#include "weft/core/status.h"
#include "weft/mesh/thread_bootstrap.h"

namespace weft::testing {
namespace {

constexpr int kRanks = 3;

// The ranks' node memory and flags. They are made by a thread for each rank, once.
struct World {
  NodeMap nodes = NodeMap::RanksPerNode(kRanks, 2);
  std::vector<std::unique_ptr<Bootstrap>> ranks = MakeThreadBootstraps(nodes);
  std::array<std::unique_ptr<NodeHeap>, kRanks> heaps;
  std::array<std::unique_ptr<NodeLink>, kRanks> links;
  std::byte* block_of_peer = nullptr;

  World() {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([this, rank] {
        auto heap = NodeHeap::Create(*ranks[rank], {.segment_bytes = size_t{1} << 22});
        WEFT_CHECK(heap.ok(), "no node memory");
        heaps[rank] = *std::move(heap);
        auto link = MakeSharedMemoryLink(*ranks[rank], *heaps[rank], kTestTimeout);
        WEFT_CHECK(link.ok(), "no flags");
        links[rank] = *std::move(link);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto block = heaps[1]->Allocate(size_t{1} << 16);
    WEFT_CHECK(block.ok(), "no block of node memory");
    block_of_peer = *block;
  }
};

World& TheWorld() {
  static auto* const world = new World;
  return *world;
}

ProcessGroup GroupOfLane(int lane) {
  if (lane == CoreEnd::kNodeLane) return {"node", {0, 1}, 0};
  return lane == CoreEnd::kLane ? ProcessGroup{"pair", {0, 2}, 0} : ProcessGroup{"reversed", {2, 0}, 1};
}

GroupPlacement PairOf(int lane) { return {GroupOfLane(lane), TheWorld().nodes}; }

const char* NameOf(int lane) {
  if (lane == CoreEnd::kNodeLane) return "node/control";
  return lane == CoreEnd::kLane ? "pair/control" : "reversed/control";
}

}  // namespace

EngineOptions CoreEnd::SmallPieces() {
  EngineOptions options;
  options.slice_bytes = 512;
  options.piece_bytes = 256;
  return options;
}

CoreEnd::CoreEnd() {
  World& world = TheWorld();
  for (const size_t rank : {0, 1}) world.links[rank]->Reset();
  scratch_ = std::make_unique<BufferPool>(*world.heaps[0], "scratch");
  core_ = std::make_unique<EngineCore>(EngineCore::Environment{
      0, world.nodes, *world.links[0], wire_, TagLayout::Of(wire_.max_tag(), world.nodes), *scratch_,
      recorder_, trace_, counters_, options_, CreditRules{}, /*shares_core=*/false,
      /*moves_take_virtual_time=*/false});
  for (const int lane : {kLane, kReversedLane, kNodeLane})
    WEFT_CHECK(core_->AddLane(lane, NameOf(lane), PairOf(lane), LanePurpose::kControl).ok(), "no lane");
}

void CoreEnd::SendOnNode(std::string_view bytes) { TheWorld().links[1]->SendMail(0, bytes); }

void CoreEnd::Poll() {
  constexpr int kMostPolls = 1000;
  bool advanced = true;
  for (int poll = 0; advanced && poll < kMostPolls; ++poll) {
    TheWorld().links[1]->FlushMail();
    advanced = core_->Poll(++now_ns_);
    while (const std::optional<DataTask> task = core_->PopTask()) {
      core_->FinishTask(*task, RunTask(task->body));
      advanced = true;
    }
  }
  while (TheWorld().links[1]->ReceiveMail()) continue;
}

void CoreEnd::Leave() {
  if (const absl::Status left = core_->Leave(); !left.ok()) core_->Fail(left);
}

std::byte* CoreEnd::Memory(int64_t bytes, bool in_node_memory) {
  const auto size = static_cast<size_t>(bytes);
  if (!in_node_memory) return memory_.emplace_back(std::make_unique<std::byte[]>(size)).get();
  absl::StatusOr<Buffer> buffer = scratch_->Acquire(size);
  WEFT_CHECK(buffer.ok(), "no node memory for a message");
  return node_memory_.emplace_back(*std::move(buffer)).data();
}

std::shared_ptr<OperationRecord> CoreEnd::SubmitMessage(OpKind kind, int peer, int64_t bytes,
                                                        bool in_node_memory) {
  auto record = std::make_shared<OperationRecord>();
  record->lane = kMessageLane;
  record->lane_name = "messages";
  record->descriptor.kind = kind;
  record->descriptor.dtype = DType::kU8;
  record->descriptor.total_count = bytes;
  record->descriptor.sequence = ++messages_;
  record->message = MessageRequest{peer, /*tag=*/0, /*channel=*/0, Memory(bytes, in_node_memory), bytes};
  core_->Submit(record);
  return record;
}

std::shared_ptr<OperationRecord> CoreEnd::NewCollective(OpKind kind, int64_t count, int lane) {
  auto record = std::make_shared<OperationRecord>();
  record->lane = lane;
  record->lane_name = NameOf(lane);
  record->descriptor.kind = kind;
  record->descriptor.total_count = count;
  record->descriptor.sequence = ++collectives_[static_cast<size_t>(lane)];
  return record;
}

void CoreEnd::SubmitAllGather(int64_t count) {
  const auto bytes = count * static_cast<int64_t>(sizeof(float));
  auto record = NewCollective(OpKind::kAllGather, 2 * count, kLane);
  CollectivePlan plan;
  std::byte* const output = Memory(2 * bytes, /*in_node_memory=*/false);
  plan.SetContiguous(OpKind::kAllGather, DType::kF32, ReduceOp::kSum, output, output,
                     PartLayout::Equal(count, 2));
  record->operation = MakeAllGather(PairOf(kLane), std::move(plan));
  core_->Submit(std::move(record));
}

std::shared_ptr<OperationRecord> CoreEnd::SubmitSum(int64_t count, int lane) {
  auto record = NewCollective(OpKind::kAllReduce, count, lane);
  CollectivePlan plan;
  std::byte* const sum = Memory(count * static_cast<int64_t>(sizeof(float)), /*in_node_memory=*/false);
  plan.SetContiguous(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, sum, sum,
                     PartLayout::FromCounts(std::array<int64_t, 1>{count}));
  record->operation = MakeTreeCollective(PairOf(lane), std::move(plan), /*mirrored=*/false);
  core_->Submit(record);
  return record;
}

void CoreEnd::SubmitOnNode(std::unique_ptr<Operation> operation) {
  auto record = NewCollective(OpKind::kBarrier, /*count=*/0, kNodeLane);
  record->operation = std::move(operation);
  core_->Submit(std::move(record));
}

void CoreEnd::ConsumeOnNode(uint64_t sequence) {
  TheWorld().links[1]->Consume(NodeLink::LocalGroupOf(kNodeLane, PairOf(kNodeLane)), sequence);
}

bool CoreEnd::HasLeftOnNode(uint64_t sequence) {
  const std::optional<Descriptor> published = TheWorld().links[1]->Peek(kNodeLane, /*peer=*/0, sequence);
  return published && published->leaves;
}

NodeAddress CoreEnd::AddressOnNode() { return *TheWorld().heaps[1]->AddressOf(TheWorld().block_of_peer); }

std::optional<NodeLink::FailureNotice> CoreEnd::FailureOnNode() { return TheWorld().links[1]->ReadFailure(); }

}  // namespace weft::testing
