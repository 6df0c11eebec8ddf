// An operation over fake links, for tests of its streams.
#pragma once

#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <absl/functional/function_ref.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/comm/links/shared_memory_link.h"
#include "src/comm/phases/streams.h"
#include "tests/comm/links/scheduler_end.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/status.h"

namespace weft::testing {

inline constexpr int64_t kSliceElements = static_cast<int64_t>(kSlice / sizeof(float));

class TaskList final : public TaskQueue {
 public:
  void Push(DataTask task) override { tasks_.push_back(std::move(task)); }
  bool RunAtOnce(const WholeMoveTask& /*task*/) override { return false; }
  // Runs all tasks. Returns the slices of each.
  std::vector<int64_t> RunAll() {
    std::vector<int64_t> slices;
    for (const DataTask& task : std::exchange(tasks_, {})) {
      EXPECT_OK(RunTask(task.body));
      for (int64_t i = 0; i < task.slices; ++i) task.owner->OnTaskDone(task.ticket + i);
      slices.push_back(task.slices);
    }
    return slices;
  }

 private:
  std::vector<DataTask> tasks_;
};

// The context of an operation of rank 0 of three nodes of one rank each, over fake links.
struct OperationFixture {
  SchedulerEnd& end;
  TaskList& tasks;
  OperationContext& context;

  // Lets the link bring ten slices in 0.1 ms, the length of the longest run.
  void MakeLinkFast() const {
    std::vector<std::byte> memory(50 * kSlice);
    EXPECT_OK(end.scheduler.Poll(/*now_ns=*/1'000'000));
    EXPECT_OK(end.scheduler.Receive({.lane = 3, .sequence = 1, .peer = 1, .number = 1}, WirePhase::kGather,
                                    Priority::kBulk, Descriptor(), PartShape::OneDim(1),
                                    {0, memory.data(), memory.size()}, &end.owner));
    end.link.FinishAll();
    EXPECT_OK(end.scheduler.Poll(/*now_ns=*/1'500'000));
  }
};

inline void WithOperation(absl::FunctionRef<absl::Status(const OperationFixture&)> body) {
  RunRanks(NodeMap::OneNode(1), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<NodeHeap> heap,
                          NodeHeap::Create(bootstrap, {.segment_bytes = 1 << 22}));
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<NodeLink> node,
                          MakeSharedMemoryLink(bootstrap, *heap, kTestTimeout));
    BufferPool pool(*heap, "test");
    const GroupPlacement placement({"nodes", {0, 1, 2}, 0}, NodeMap::RanksPerNode(3, 1));
    const auto record = std::make_shared<OperationRecord>();
    record->lane = 2;
    SchedulerEnd end;
    end.options.slice_bytes = kSlice;
    TaskList tasks;
    OperationContext context{placement,
                             *node,
                             end.scheduler,
                             tasks,
                             pool,
                             end.counters,
                             end.options,
                             record,
                             Priority::kBulk,
                             /*is_ready_awaited=*/false,
                             /*is_release_awaited=*/false};
    return body({end, tasks, context});
  });
}

// Numbers that follow each other.
inline std::vector<float> Numbers(int64_t count, float first) {
  std::vector<float> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

inline SliceMemory MemoryOf(std::vector<float>& numbers, int64_t ring_slices = 0) {
  return {reinterpret_cast<std::byte*>(numbers.data()), sizeof(float), ring_slices};
}

// Steps a stream of tasks and runs them until it has finished. Returns the slices of each task.
template <typename Stream>
std::vector<int64_t> Finish(const OperationFixture& operation, Stream& stream, int64_t available) {
  std::vector<int64_t> slices;
  while (stream.Step(operation.context, available)) {
    const std::vector<int64_t> run = operation.tasks.RunAll();
    slices.insert(slices.end(), run.begin(), run.end());
  }
  return slices;
}

}  // namespace weft::testing
