// Ranks over a store that die or leave: the others get an error in bounded time that names the rank. Each
// rank is a child process of the test.
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/mesh/store_bootstrap.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kAbsent = 1;  // The rank that dies or leaves.

struct Outcome {
  int status = 0;  // As from waitpid.
  std::string text;
};

// Runs `body` in a process for each rank, and returns what it returned. A process that does not end by itself
// is ended by a signal after a minute.
std::vector<Outcome> RunProcesses(int ranks, const std::function<std::string(int)>& body) {
  constexpr unsigned kLimitSeconds = 60;
  std::vector<pid_t> children;
  std::vector<int> pipes;
  for (int rank = 0; rank < ranks; ++rank) {
    std::array<int, 2> ends = {};
    EXPECT_EQ(pipe(ends.data()), 0);
    const pid_t child = fork();
    EXPECT_GE(child, 0);
    if (child == 0) {
      alarm(kLimitSeconds);
      const std::string text = body(rank);
      const ssize_t written = write(ends[1], text.data(), text.size());
      _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    close(ends[1]);
    children.push_back(child);
    pipes.push_back(ends[0]);
  }
  std::vector<Outcome> outcomes(children.size());
  for (size_t rank = 0; rank < children.size(); ++rank) {
    std::array<char, 4096> block = {};
    for (ssize_t got = 0; (got = read(pipes[rank], block.data(), block.size())) > 0;)
      outcomes[rank].text.append(block.data(), static_cast<size_t>(got));
    close(pipes[rank]);
    EXPECT_EQ(waitpid(children[rank], &outcomes[rank].status, 0), children[rank]);
  }
  return outcomes;
}

// An operation that rank 1 does not submit, because it was killed after an earlier collective, or has left.
enum class Orphaned : uint8_t { kAllReduce, kSmallAllReduce, kBarrier, kBroadcast, kSend, kReceive };

Work Submit(Orphaned operation, EngineFixture& fixture, TestBuffer& buffer, int64_t count) {
  CommEngine& engine = *fixture.engine;
  const auto bytes = count * static_cast<int64_t>(sizeof(float));
  switch (operation) {
    case Orphaned::kAllReduce:
      return engine.AllReduce(fixture.lane, buffer.data(), buffer.data(), DType::kF32, count, ReduceOp::kSum);
    case Orphaned::kSmallAllReduce:
      return engine.AllReduce(fixture.lane, buffer.data(), buffer.data(), DType::kF32, 1, ReduceOp::kSum);
    case Orphaned::kBarrier:
      return engine.Barrier(fixture.lane, {});
    case Orphaned::kBroadcast:
      return engine.Broadcast(fixture.lane, buffer.data(), DType::kF32, count, /*root=*/0);
    case Orphaned::kSend:
      return engine.Send({.peer = kAbsent}, buffer.data(), DType::kU8, bytes);
    case Orphaned::kReceive:
      break;
  }
  return engine.Receive({.peer = kAbsent}, buffer.data(), DType::kU8, bytes);
}

constexpr int64_t kCount = 100'000;

StoreBootstrapOptions OptionsOf(int rank, int size, int nodes) {
  StoreBootstrapOptions options;
  options.rank = rank;
  options.size = size;
  options.node_id = absl::StrCat("node ", rank % nodes);
  return options;
}

// Returns the status of the operation on this rank. Ranks of different parity are on different nodes if there
// are two.
absl::Status RunWithoutTheDeadRank(const std::string& folder, int rank, int nodes, Orphaned operation,
                                   absl::Duration timeout) {
  WEFT_ASSIGN_OR_RETURN(const auto store, OpenFileStore(folder));
  WEFT_ASSIGN_OR_RETURN(const auto bootstrap, MakeStoreBootstrap(store, OptionsOf(rank, 3, nodes)));
  EngineOptions engine_options;
  engine_options.timeout = timeout;
  WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                        EngineFixture::Make(*bootstrap, engine_options, size_t{16} << 20));
  WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));
  WEFT_RETURN_IF_ERROR(BootstrapBarrier(*bootstrap));
  if (rank == kAbsent) raise(SIGKILL);
  WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, DType::kF32, kCount));
  return Submit(operation, fixture, buffer, kCount).WaitReleased();
}

std::vector<Outcome> RunWithADeadRank(int nodes, Orphaned operation, absl::Duration timeout) {
  const TempFolder folder;
  return RunProcesses(3, [&](int rank) {
    return RunWithoutTheDeadRank(folder.str(), rank, nodes, operation, timeout).ToString();
  });
}

// The timeout is longer than the test may take: the end of the connection tells, not the deadline.
TEST(StoreFaults, ARankThatDiesOnAnotherNodeIsNamedAtOnce) {
  for (const Orphaned operation : {Orphaned::kAllReduce, Orphaned::kSmallAllReduce, Orphaned::kBarrier,
                                   Orphaned::kBroadcast, Orphaned::kSend, Orphaned::kReceive}) {
    SCOPED_TRACE(static_cast<int>(operation));
    const std::vector<Outcome> outcomes = RunWithADeadRank(/*nodes=*/2, operation, absl::Minutes(10));
    EXPECT_EQ(WTERMSIG(outcomes[kAbsent].status), SIGKILL);
    for (const int survivor : {0, 2}) {
      EXPECT_EQ(outcomes[static_cast<size_t>(survivor)].status, 0);
      EXPECT_THAT(outcomes[static_cast<size_t>(survivor)].text,
                  HasSubstr("the connection to rank 1 was lost"));
    }
  }
}

TEST(StoreFaults, ARankThatDiesOnTheSameNodeIsNamedAtTheDeadline) {
  const std::vector<Outcome> outcomes = RunWithADeadRank(/*nodes=*/1, Orphaned::kAllReduce, absl::Seconds(1));
  EXPECT_EQ(WTERMSIG(outcomes[kAbsent].status), SIGKILL);
  for (const int survivor : {0, 2}) {
    EXPECT_EQ(outcomes[static_cast<size_t>(survivor)].status, 0);
    EXPECT_THAT(outcomes[static_cast<size_t>(survivor)].text,
                AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("no heartbeat from rank(s) 1")));
  }
}

TEST(StoreFaults, ARankThatDiesDuringStartUpIsNamed) {
  const TempFolder folder;
  const std::vector<Outcome> outcomes = RunProcesses(3, [&](int rank) -> std::string {
    StoreBootstrapOptions options;
    options.rank = rank;
    options.size = 3;
    options.timeout = absl::Seconds(1);
    const auto store = OpenFileStore(folder.str());
    if (!store.ok()) return store.status().ToString();
    const auto bootstrap = MakeStoreBootstrap(*store, options);
    if (!bootstrap.ok()) return bootstrap.status().ToString();
    if (rank == kAbsent) raise(SIGKILL);
    return (*bootstrap)->ReserveNodeMemory(1000).status().ToString();
  });
  EXPECT_EQ(WTERMSIG(outcomes[kAbsent].status), SIGKILL);
  for (const int survivor : {0, 2}) {
    EXPECT_THAT(outcomes[static_cast<size_t>(survivor)].text, HasSubstr("rank 1 did not arrive within 1s"));
  }
}

// Six ranks, each on a node of its own. Rank 1 destroys its engine before it has sent anything to rank 4,
// which then needs it. The other ranks, its neighbors, hear of it, but need nothing of it. Returns the status
// of the operation on rank 4.
absl::Status RunAfterALeaving(const std::string& folder, int rank, Orphaned operation) {
  constexpr int kRanks = 6;
  constexpr int kNoNeighbor = 4;
  WEFT_ASSIGN_OR_RETURN(const auto store, OpenFileStore(folder));
  WEFT_ASSIGN_OR_RETURN(const auto bootstrap, MakeStoreBootstrap(store, OptionsOf(rank, kRanks, kRanks)));
  EngineOptions options;
  options.timeout = absl::Minutes(10);
  WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(*bootstrap, options, size_t{16} << 20));
  if (rank == kAbsent) fixture.engine.reset();
  WEFT_RETURN_IF_ERROR(BootstrapBarrier(*bootstrap));
  absl::Status status;
  if (rank == kNoNeighbor) {
    WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, DType::kF32, kCount));
    status = Submit(operation, fixture, buffer, kCount).WaitReleased();
  }
  WEFT_RETURN_IF_ERROR(BootstrapBarrier(*bootstrap));
  return status;
}

TEST(StoreFaults, ARankThatHasLeftIsNotLost) {
  for (const auto& [operation, missed] : {std::pair{Orphaned::kAllReduce, "submitted all_reduce"},
                                          {Orphaned::kSend, "received send"},
                                          {Orphaned::kReceive, "sent receive"}}) {
    SCOPED_TRACE(missed);
    const TempFolder folder;
    const std::vector<Outcome> outcomes = RunProcesses(6, [&, orphaned = operation](int rank) {
      return RunAfterALeaving(folder.str(), rank, orphaned).ToString();
    });
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      EXPECT_EQ(outcomes[rank].status, 0) << "rank " << rank;
      EXPECT_EQ(outcomes[rank].text == "OK", rank != 4) << "rank " << rank << ": " << outcomes[rank].text;
    }
    EXPECT_THAT(
        outcomes[4].text,
        AllOf(HasSubstr("ABORTED"), HasSubstr(absl::StrCat("rank 1 destroyed its engine before it ", missed)),
              HasSubstr("see the error of that rank")));
  }
}

}  // namespace
}  // namespace weft::testing
