// Main program of tests whose ranks are processes, started by mpirun or by tools/store_ranks.py. All ranks
// run the same tests and agree on the verdict once, at the end: between tests, this exchange could mix with
// collectives of the tests. Rank 0 prints all results, the other ranks print failures only.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/mpi_world.h"
#include "tests/support/test_timeout.h"
#include "weft/core/status.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/mesh/store_bootstrap.h"

namespace weft::testing {
namespace {

std::unique_ptr<Bootstrap>& World() {
  static std::unique_ptr<Bootstrap> world;
  return world;
}

class FailurePrinter : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}

 private:
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "[rank %d] %s:%d: Failure\n%s\n", rank_,
                 result.file_name() == nullptr ? "unknown" : result.file_name(), result.line_number(),
                 result.message());
  }
  const int rank_;
};

// Also removes the writer of --gtest_output: ranks would overwrite the file of each other.
void PrintFailuresOnly(int rank) {
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  delete listeners.Release(listeners.default_xml_generator());
  listeners.Append(new FailurePrinter(rank));
}

// The names of the tests that failed on this rank, one per line.
std::string FailedTests() {
  std::string names;
  const auto& unit = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < unit.total_test_suite_count(); ++i) {
    const auto& suite = *unit.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const auto& test = *suite.GetTestInfo(j);
      if (test.result()->Failed()) absl::StrAppend(&names, "  ", suite.name(), ".", test.name(), "\n");
    }
  }
  return names;
}

// Collective: all ranks. Returns the same exit code on all ranks.
int AgreeOnVerdict(Bootstrap& bootstrap, bool passed) {
  const auto verdicts = bootstrap.AllGatherBlob(
      passed ? std::string() : absl::StrCat("  failed\n", FailedTests()), kTestTimeout);
  if (!verdicts.ok()) {
    std::fprintf(stderr, "[rank %d] the ranks could not agree on a verdict: %s\n", bootstrap.rank(),
                 std::string(verdicts.status().message()).c_str());
    return EXIT_FAILURE;
  }
  int verdict = EXIT_SUCCESS;
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    if ((*verdicts)[rank].empty()) continue;
    verdict = EXIT_FAILURE;
    if (bootstrap.rank() == 0) std::fprintf(stderr, "rank %d:\n%s", rank, (*verdicts)[rank].c_str());
  }
  return verdict;
}

absl::StatusOr<std::unique_ptr<Bootstrap>> MakeWorld() {
  const char* folder = std::getenv("WEFT_STORE");
  if (folder == nullptr) return MakeMpiBootstrap();
  WEFT_ASSIGN_OR_RETURN(const StoreBootstrapOptions options, StoreBootstrapOptions::FromEnvironment());
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<KeyValueStore> store, OpenFileStore(folder));
  return MakeStoreBootstrap(store, options);
}

int Main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  auto bootstrap = MakeWorld();
  if (!bootstrap.ok()) {
    std::fprintf(stderr, "%s\n", bootstrap.status().ToString().c_str());
    return EXIT_FAILURE;
  }
  World() = *std::move(bootstrap);
  if (World()->rank() != 0) PrintFailuresOnly(World()->rank());
  const bool passed = RUN_ALL_TESTS() == 0;
  const int verdict = AgreeOnVerdict(*World(), passed);
  World().reset();
  return verdict;
}

}  // namespace

Bootstrap& WorldBootstrap() {
  WEFT_CHECK(World() != nullptr, "only tests with MPI_RANKS or STORE_RANKS may call WorldBootstrap");
  return *World();
}

}  // namespace weft::testing

int main(int argc, char** argv) { return weft::testing::Main(argc, argv); }
