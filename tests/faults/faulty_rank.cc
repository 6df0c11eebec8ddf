// A program in which one rank of a collective misbehaves: `faulty_rank OPERATION FAULT RANK`.
//
// Every rank submits five operations and waits for each. In the third, rank RANK does as FAULT says:
//   skip, count, dtype, reduce, order   submits nothing, or another operation
//   drop                                returns an error of its own while its operation is in flight
//   kill, segv, stop, exit0, exit1      ends or stops right after it has submitted the operation
//   slow                                sleeps for FAULT_SECONDS before it submits the operation
//   pause                               is stopped for FAULT_SECONDS; all ranks then reset the engine
// Exit codes are those of `weft train`.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include <absl/strings/str_cat.h>

#include "weft/comm/comm_engine.h"
#include "weft/core/exit_codes.h"
#include "weft/core/status.h"
#include "weft/memory/buffer_pool.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/mesh/world_group.h"

namespace weft {
namespace {

constexpr int64_t kElements = int64_t{1} << 18;  // Elements per rank.
constexpr int kOperations = 5;
constexpr int kFaultyOperation = 3;

// The arguments of one operation. Faults change them.
struct Arguments {
  std::string kind;
  int64_t count = kElements;  // Elements per rank.
  DType dtype = DType::kF32;
  ReduceOp reduce = ReduceOp::kSum;
};

Work Submit(CommEngine& engine, LaneId lane, Buffer& input, Buffer& output, const Arguments& arguments) {
  const int64_t total = arguments.count * engine.bootstrap().size();
  OpOptions options;
  options.label = "faulty";
  if (arguments.kind == "all_gather") {
    return engine.AllGather(lane, input.data(), output.data(), arguments.dtype, total, {}, options);
  }
  if (arguments.kind == "reduce_scatter") {
    return engine.ReduceScatter(lane, input.data(), output.data(), arguments.dtype, total, arguments.reduce,
                                {}, options);
  }
  if (arguments.kind == "all_reduce") {
    return engine.AllReduce(lane, input.data(), output.data(), arguments.dtype, arguments.count,
                            arguments.reduce, options);
  }
  const std::vector<int64_t> counts(static_cast<size_t>(engine.bootstrap().size()), arguments.count);
  return engine.AllToAll(lane, input.data(), counts, output.data(), counts, arguments.dtype, options);
}

Arguments Changed(Arguments arguments, const std::string& fault) {
  if (fault == "count") arguments.count /= 2;
  if (fault == "dtype") arguments.dtype = DType::kBF16;
  if (fault == "reduce") arguments.reduce = ReduceOp::kAverage;
  if (fault == "order") arguments.kind = arguments.kind == "all_reduce" ? "reduce_scatter" : "all_reduce";
  return arguments;
}

void Act(const std::string& fault) {
  if (fault == "kill") raise(SIGKILL);
  if (fault == "segv") raise(SIGSEGV);
  if (fault == "stop") kill(getpid(), SIGSTOP);
  if (fault == "exit0") _exit(0);
  if (fault == "exit1") _exit(1);
}

std::chrono::duration<double> FaultTime() {
  const char* seconds = std::getenv("FAULT_SECONDS");
  return std::chrono::duration<double>(seconds == nullptr ? 1 : std::atof(seconds));
}

void Sleep(int rank, int operation) {
  std::this_thread::sleep_for(FaultTime());
  std::printf("rank %d: slept before operation %d\n", rank, operation);
}

// Stops all threads of the process for FAULT_SECONDS; then a child continues them.
void Pause() {
  const pid_t child = fork();
  if (child == 0) {
    std::this_thread::sleep_for(FaultTime());
    kill(getppid(), SIGCONT);
    _exit(0);
  }
  kill(getpid(), SIGSTOP);
  waitpid(child, nullptr, 0);
}

absl::Status Run(Bootstrap& bootstrap, const std::string& kind, const std::string& fault, int rank) {
  WEFT_ASSIGN_OR_RETURN(const absl::Duration timeout, DefaultTimeout());
  NodeHeap::Options heap_options;
  heap_options.segment_bytes = size_t{64} << 20;
  heap_options.timeout = timeout;
  WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, heap_options));
  EngineOptions options;
  options.timeout = timeout;
  options.watchdog = true;
  options.dump_folder = "weft-dump";
  WEFT_ASSIGN_OR_RETURN(const auto engine, CommEngine::Create(bootstrap, *heap, options));
  WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine->AddLane(WorldGroup(bootstrap), LanePurpose::kContext));
  BufferPool pool(*heap, "operations");
  const size_t bytes = static_cast<size_t>(kElements * bootstrap.size()) * sizeof(float);
  WEFT_ASSIGN_OR_RETURN(Buffer input, pool.Acquire(bytes));
  WEFT_ASSIGN_OR_RETURN(Buffer output, pool.Acquire(bytes));
  for (int operation = 1; operation <= kOperations; ++operation) {
    engine->SetPhase(absl::StrCat("operation ", operation));
    const bool faulty = operation == kFaultyOperation && bootstrap.rank() == rank;
    if (faulty && fault == "slow") Sleep(rank, operation);
    if (faulty && fault == "pause") Pause();
    if (faulty && fault == "skip") continue;
    const Arguments arguments = faulty ? Changed({kind}, fault) : Arguments{kind};
    absl::Status done;
    {
      Work work = Submit(*engine, lane, input, output, arguments);
      if (faulty) Act(fault);
      if (faulty && fault == "drop") return absl::DataLossError("the batch cannot be read");
      done = work.Wait();
      if (done.ok()) done = work.WaitReleased();
    }
    if (!done.ok() && fault == "pause") {
      WEFT_RETURN_IF_ERROR(engine->ResetAfterError());
      std::printf("rank %d: operation %d after a reset\n", bootstrap.rank(), operation);
      Work work = Submit(*engine, lane, input, output, arguments);
      done = work.WaitReleased();
    }
    WEFT_RETURN_IF_ERROR(done);
  }
  return absl::OkStatus();
}

// The ranks agree on the error that caused a failure, rather than on one that followed from it.
absl::Status AgreeOnCause(Bootstrap& bootstrap, const absl::Status& local) {
  if (absl::IsDeadlineExceeded(local)) return local;
  WEFT_ASSIGN_OR_RETURN(const absl::Duration timeout, DefaultTimeout());
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, absl::IsAborted(local) ? absl::OkStatus() : local, timeout));
  return AgreeOnStatus(bootstrap, local, timeout);
}

int ExitCode(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  if (absl::IsDataLoss(status)) return kExitBadFile;
  return absl::IsDeadlineExceeded(status) || absl::IsAborted(status) ? kExitRankMissing : kExitFailed;
}

int Main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: faulty_rank OPERATION FAULT RANK\n");
    return kExitBadUsage;
  }
  const auto bootstrap = MakeMpiBootstrap();
  if (!bootstrap.ok()) {
    std::fprintf(stderr, "weft: %s\n", bootstrap.status().ToString().c_str());
    return kExitFailed;
  }
  const absl::Status status =
      AgreeOnCause(**bootstrap, Run(**bootstrap, argv[1], argv[2], std::atoi(argv[3])));
  if (!status.ok()) {
    std::fprintf(stderr, "weft: rank %d: %s\n", (*bootstrap)->rank(), std::string(status.message()).c_str());
  }
  return ExitCode(status);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
