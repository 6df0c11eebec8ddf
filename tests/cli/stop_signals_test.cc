#include "src/cli/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <sys/resource.h>
#include <thread>

#include <gtest/gtest.h>

#include "weft/core/exit_codes.h"

namespace weft {
namespace {

constexpr int kAll[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR2};

bool IsBlockedHere(int signal) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

void SendToThisProcess(int signal) { kill(getpid(), signal); }

void WaitFor(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::yield();
}

class StopSignalsTest : public ::testing::Test {
 protected:
  StopSignalsTest() { std::signal(SIGHUP, SIG_DFL); }  // The tests may run under nohup.
};
using StopSignalsDeathTest = StopSignalsTest;

TEST_F(StopSignalsTest, SetsTheFlagAtTheFirstSignalOfEachKind) {
  for (const int signal : kAll) {
    StopSignals signals;
    const std::atomic<bool>& stop = signals.EnableGracefulStop();
    EXPECT_FALSE(stop);
    SendToThisProcess(signal);
    WaitFor(stop);
  }
}

TEST_F(StopSignalsTest, BlocksTheSignalsInThreadsThatStartLater) {
  const StopSignals signals;
  std::thread([] {
    for (const int signal : kAll) EXPECT_TRUE(IsBlockedHere(signal)) << signal;
  }).join();
}

TEST_F(StopSignalsTest, InstallsNoHandler) {
  StopSignals signals;
  signals.EnableGracefulStop();
  for (const int signal : kAll) {
    struct sigaction action {};
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
    EXPECT_EQ(action.sa_handler, SIG_DFL) << signal;
  }
}

TEST_F(StopSignalsTest, LeavesSIGHUPIgnoredUnderNohup) {
  std::signal(SIGHUP, SIG_IGN);
  const StopSignals signals;
  EXPECT_FALSE(IsBlockedHere(SIGHUP));
}

TEST_F(StopSignalsDeathTest, TakesASignalThatArrivedAfterBlock) {
  for (const int signal : kAll) {
    const auto receive = [signal] {
      StopSignals::Block();
      SendToThisProcess(signal);
      const StopSignals signals;
      for (;;) pause();
    };
    EXPECT_EXIT(receive(), ::testing::ExitedWithCode(kExitInterrupted), "");
  }
}

TEST_F(StopSignalsTest, RestoresTheSignalMask) {
  { const StopSignals signals; }
  for (const int signal : kAll) EXPECT_FALSE(IsBlockedHere(signal)) << signal;
}

TEST_F(StopSignalsDeathTest, EndsWithoutASignalWhereNoneCanBeQueued) {
  const auto run = [] {
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_SIGPENDING, &none);
    { const StopSignals signals; }
    std::_Exit(kExitDone);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(kExitDone), "");
}

TEST_F(StopSignalsDeathTest, EndsTheProcessBeforeGracefulStopsAreEnabled) {
  for (const int signal : kAll) {
    const auto receive = [signal] {
      const StopSignals signals;
      SendToThisProcess(signal);
      for (;;) pause();
    };
    EXPECT_EXIT(receive(), ::testing::ExitedWithCode(kExitInterrupted), "");
  }
}

TEST_F(StopSignalsDeathTest, EndsTheProcessAtTheSecondSignalOfAKind) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto receive_twice = [signal] {
      StopSignals signals;
      const std::atomic<bool>& stop = signals.EnableGracefulStop();
      SendToThisProcess(signal);
      WaitFor(stop);
      SendToThisProcess(signal);
      for (;;) pause();
    };
    EXPECT_EXIT(receive_twice(), ::testing::ExitedWithCode(kExitInterrupted), "");
  }
}

// weft launch sends SIGUSR2 also to ranks that have got another signal. A terminal that closes causes two
// SIGHUP.
TEST_F(StopSignalsTest, IgnoresRepeatedSIGUSR2AndSIGHUP) {
  StopSignals signals;
  const std::atomic<bool>& stop = signals.EnableGracefulStop();
  SendToThisProcess(SIGTERM);
  WaitFor(stop);
  for (const int signal : {SIGUSR2, SIGUSR2, SIGUSR2, SIGHUP, SIGHUP}) {
    SendToThisProcess(signal);
    // The system would merge a signal with a pending one of the same kind.
    sigset_t pending;
    do sigpending(&pending);
    while (sigismember(&pending, signal) == 1);
  }
  EXPECT_TRUE(stop);
}

}  // namespace
}  // namespace weft
