// Wake-ups and sleeps of the progress thread beside a thread that submits small collectives and waits for
// each.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/forwarding_bootstrap.h"
#include "tests/support/forwarding_link.h"
#include "tests/support/forwarding_runtime.h"
#include "tests/support/status_matchers.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

constexpr int64_t kSumElements = 256;

// Holds the progress thread whenever it parks, as if another thread had its core, until it is let go.
class HoldingRuntime final : public ForwardingRuntime {
 public:
  using ForwardingRuntime::ForwardingRuntime;

  void SleepOn(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) override {
    const bool parks = timeout_ns >= kLeastParkNs;
    {
      std::unique_lock lock(mutex_);
      if (!first_sleep_) first_sleep_ = parks;
      if (parks && holds_) {
        is_held_ = true;
        changed_.notify_all();
        changed_.wait(lock, [&] { return !is_held_; });
        return;
      }
    }
    ForwardingRuntime::SleepOn(word, expected, timeout_ns);
  }
  void WakeAll(const std::atomic<uint32_t>& word) override {
    wake_ups_.fetch_add(1);
    ForwardingRuntime::WakeAll(word);
  }

  void AwaitHeld() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_held_; });
  }
  bool is_held() {
    const std::lock_guard lock(mutex_);
    return is_held_;
  }
  void LetGo() {
    const std::lock_guard lock(mutex_);
    first_sleep_.reset();
    is_held_ = false;
    changed_.notify_all();
  }
  void StopHolding() {
    holds_.store(false);
    LetGo();
  }
  // True if the thread has parked at the first sleep since LetGo. Waits for that sleep.
  bool HasParkedAtOnce() {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (first_sleep_) return *first_sleep_;
      }
      std::this_thread::yield();
    }
  }
  int wake_ups() const { return wake_ups_.load(); }

 private:
  static constexpr int64_t kLeastParkNs = 100'000'000;  // All other sleeps are shorter.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> holds_{true};
  bool is_held_ = false;             // Guarded by mutex_.
  std::optional<bool> first_sleep_;  // Guarded by mutex_. True if it parks.
  std::atomic<int> wake_ups_{0};
};

class HoldingBootstrap : public ForwardingBootstrap {
 public:
  explicit HoldingBootstrap(Bootstrap& base) : ForwardingBootstrap(base), holding(base.runtime()) {}
  Runtime& runtime() override { return holding; }

  HoldingRuntime holding;
};

// Two ranks of a node. The progress thread of each one is held. Rank 0 arrives first in every collective.
class TwoRanks {
 public:
  static void Run(const std::function<absl::Status(TwoRanks&)>& body) {
    RunRanks(NodeMap::OneNode(2), [&](Bootstrap& base) -> absl::Status {
      HoldingBootstrap bootstrap(base);
      const absl::Status status = RunOn(bootstrap, body);
      return status;
    });
  }
  HoldingRuntime& progress_thread() { return bootstrap_.holding; }
  bool arrives_first() const { return bootstrap_.rank() == 0; }

  // Submits a collective. It is complete on the rank that arrives last.
  absl::StatusOr<Work> Gather() {
    if (arrives_first()) {
      Work work = Submit();
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap_));
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap_));
      return work;
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap_));
    Work work = Submit();
    EXPECT_TRUE(work.TestReleased());
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap_));
    return work;
  }

 private:
  TwoRanks(HoldingBootstrap& bootstrap, EngineFixture fixture)
      : bootstrap_(bootstrap), fixture_(std::move(fixture)) {}
  static absl::Status RunOn(HoldingBootstrap& bootstrap, const std::function<absl::Status(TwoRanks&)>& body) {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    TwoRanks ranks(bootstrap, std::move(fixture));
    WEFT_ASSIGN_OR_RETURN(ranks.part_,
                          TestBuffer::Make(*ranks.fixture_.pool, true, DType::kF32, kSumElements));
    WEFT_ASSIGN_OR_RETURN(ranks.whole_,
                          TestBuffer::Make(*ranks.fixture_.pool, true, DType::kF32, 2 * kSumElements));
    bootstrap.holding.AwaitHeld();
    const absl::Status status = body(ranks);
    bootstrap.holding.StopHolding();
    return status;
  }
  Work Submit() {
    return fixture_.engine->AllGather(fixture_.lane, part_.data(), whole_.data(), DType::kF32,
                                      2 * kSumElements);
  }

  HoldingBootstrap& bootstrap_;
  EngineFixture fixture_;
  TestBuffer part_, whole_;
};

TEST(ProgressThread, IsWokenOnceUntilItRuns) {
  TwoRanks::Run([](TwoRanks& ranks) -> absl::Status {
    const int before = ranks.progress_thread().wake_ups();
    for (int round = 0; round < 10; ++round) {
      WEFT_ASSIGN_OR_RETURN(Work work, ranks.Gather());
      WEFT_RETURN_IF_ERROR(work.WaitReleased());
    }
    EXPECT_LE(ranks.progress_thread().wake_ups() - before, 1);
    return absl::OkStatus();
  });
}

struct UnsentMessages {
  std::atomic<bool> any{true};
  std::atomic<int> polls{0};
};

// A link that cannot send its control messages until the test lets it.
class BusyLink final : public ForwardingLink {
 public:
  BusyLink(std::unique_ptr<WireLink> base, UnsentMessages& unsent)
      : ForwardingLink(std::move(base)), unsent_(unsent) {}

  absl::Status Poll() override {
    unsent_.polls.fetch_add(1);
    return ForwardingLink::Poll();
  }
  bool HasUnsentControlMessages() const override { return unsent_.any.load(); }

 private:
  UnsentMessages& unsent_;
};

class BusyLinkBootstrap final : public HoldingBootstrap {
 public:
  using HoldingBootstrap::HoldingBootstrap;

  absl::StatusOr<std::unique_ptr<WireLink>> OpenLink(absl::Duration timeout) override {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<WireLink> link, ForwardingBootstrap::OpenLink(timeout));
    return std::make_unique<BusyLink>(std::move(link), unsent);
  }

  UnsentMessages unsent;
};

// A peer may wait for a message although this rank has no operation left.
TEST(ProgressThread, DoesNotParkWhileControlMessagesAreUnsent) {
  RunRanks(NodeMap::RanksPerNode(2, 1), [&](Bootstrap& base) -> absl::Status {
    BusyLinkBootstrap bootstrap(base);
    WEFT_ASSIGN_OR_RETURN(const EngineFixture fixture,
                          EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    constexpr int kManyPolls = 20;
    while (bootstrap.unsent.polls.load() < kManyPolls && !bootstrap.holding.is_held())
      std::this_thread::yield();
    EXPECT_FALSE(bootstrap.holding.is_held());
    bootstrap.unsent.any.store(false);
    bootstrap.holding.StopHolding();
    return absl::OkStatus();
  });
}

// The progress thread itself completes each collective, so that the waits return at once.
TEST(ProgressThread, DoesNotParkBetweenCollectivesForWhichAThreadWaits) {
  // If ranks share hardware threads, waits for past events do not count.
  const bool has_cores = std::thread::hardware_concurrency() >= 2;
  TwoRanks::Run([&](TwoRanks& ranks) -> absl::Status {
    for (const bool waits : {false, true}) {
      WEFT_ASSIGN_OR_RETURN(Work work, ranks.Gather());
      if (!ranks.arrives_first()) continue;
      ranks.progress_thread().LetGo();
      const bool has_parked = ranks.progress_thread().HasParkedAtOnce();
      EXPECT_TRUE(work.TestReleased());
      EXPECT_EQ(has_parked, !(waits && has_cores));
      ranks.progress_thread().AwaitHeld();
      for (int i = 0; i < 4; ++i) WEFT_RETURN_IF_ERROR(work.WaitReleased());
    }
    return absl::OkStatus();
  });
}

// A rank that the system gives no thread for its progress.
class ThreadlessRuntime final : public ForwardingRuntime {
 public:
  using ForwardingRuntime::ForwardingRuntime;
  absl::StatusOr<std::unique_ptr<Task>> Start(std::string_view /*purpose*/,
                                              std::function<void()> /*body*/) override {
    return absl::ResourceExhaustedError("no thread");
  }
};

class ThreadlessBootstrap final : public ForwardingBootstrap {
 public:
  explicit ThreadlessBootstrap(Bootstrap& base) : ForwardingBootstrap(base), runtime_(base.runtime()) {}
  Runtime& runtime() override { return runtime_; }

 private:
  ThreadlessRuntime runtime_;
};

TEST(ProgressThread, ThatDoesNotStartOnOneRankIsAnErrorOfCreateOnAllRanks) {
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    ThreadlessBootstrap threadless(bootstrap);
    const bool is_own = bootstrap.rank() == 1;
    WEFT_ASSIGN_OR_RETURN(const auto heap,
                          NodeHeap::Create(bootstrap, {.segment_bytes = kSmallSegmentBytes}));
    EXPECT_THAT(CommEngine::Create(is_own ? threadless : bootstrap, *heap, WithTestTimeout()),
                StatusIs(absl::StatusCode::kResourceExhausted, is_own ? "no thread" : "rank 1: no thread"));
    return CommEngine::Create(bootstrap, *heap, WithTestTimeout()).status();
  });
}

}  // namespace
}  // namespace weft::testing
