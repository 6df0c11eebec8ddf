#include "tests/comm/random_program.h"

#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tests/comm/engine_fixture.h"
#include "tests/comm/random_values.h"
#include "weft/mesh/device_mesh.h"

namespace weft::testing {
namespace {

constexpr int kImages = 2;
// Operation n's values start here, so that no two operations share any.
int64_t ValuesOf(int op) { return int64_t{op} << 24; }

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int percent) { return Between(1, 100) <= percent; }
  template <typename T>
  T OneOf(std::initializer_list<T> choices) {
    return choices.begin()[Between(0, static_cast<int64_t>(choices.size()) - 1)];
  }

 private:
  std::mt19937_64 random_;
};

std::vector<int64_t> PartsOf(const ProgramOp& op, int ranks) {
  std::vector<int64_t> parts(static_cast<size_t>(ranks), op.count);
  for (int rank = 0; op.uneven && rank < ranks; ++rank) {
    parts[static_cast<size_t>(rank)] = rank % 3 == 1 ? 0 : op.count + rank;
  }
  return parts;
}

int64_t Sum(const std::vector<int64_t>& parts, int first) {
  return std::accumulate(parts.begin(), parts.begin() + first, int64_t{0});
}
int64_t Sum(const std::vector<int64_t>& parts) { return Sum(parts, static_cast<int>(parts.size())); }

// What rank `from` sends to rank `to`.
int64_t ExchangeCount(const ProgramOp& op, int from, int to) {
  return op.uneven && (from + to) % 3 == 1 ? 0 : op.count + (op.uneven ? from : 0);
}

ProgramOp DrawOp(Dice& dice) {
  using Kind = ProgramOp::Kind;
  ProgramOp op{};
  op.kind =
      dice.OneOf({Kind::kGatherImage, Kind::kGatherImage, Kind::kReduceGradients, Kind::kReduceGradients,
                  Kind::kAllReduce, Kind::kExchange, Kind::kBroadcast, Kind::kBarrier});
  // Sums of bf16 depend on the node map, and are tested elsewhere.
  op.dtype = dice.OneOf({DType::kF32, DType::kF32, DType::kF16, DType::kI32, DType::kI64});
  op.priority = dice.OneOf({Priority::kCritical, Priority::kPrefetch, Priority::kReduce, Priority::kBulk});
  op.count = dice.OneOf<int64_t>({0, 1, 2, 31, 64, 257, 600});
  op.uneven = dice.Chance(40);
  op.node_memory = op.kind == Kind::kGatherImage || dice.Chance(75);
  op.image = static_cast<int>(dice.Between(0, kImages - 1));
  op.whole_world = dice.Chance(40);
  op.root = static_cast<int>(dice.Between(0, 1 << 20));
  return op;
}

int DivisorOf(int number, Dice& dice) {
  std::vector<int> divisors;
  for (int i = 1; i <= number; ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return divisors[static_cast<size_t>(dice.Between(0, static_cast<int64_t>(divisors.size()) - 1))];
}

// One rank's run of a program.
class Runner {
 public:
  Runner(Bootstrap& bootstrap, const Program& program, const ProgramRules& rules,
         const ProgramMistake* mistake)
      : bootstrap_(bootstrap),
        program_(program),
        rules_(rules),
        mistake_(mistake != nullptr && mistake->rank == bootstrap.rank() ? mistake : nullptr),
        dice_(program.seed * 1000003 + static_cast<uint64_t>(bootstrap.rank())) {}
  // Memory of what has failed must outlive the engine, which must outlive its Works.
  ~Runner() {
    for (const auto& live : live_) {
      live->work = Work();
      live->continued = Work();
    }
    if (fixture_) fixture_->engine.reset();
  }

  absl::Status Run(ProgramOutcome& outcome);

 private:
  // An operation under way: one collective, or a reduce-scatter and the all-reduce that continues it.
  struct Live {
    int op;
    std::vector<int64_t> parts;
    TestBuffer input, output;
    Work work, continued;
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
    return {op.priority, static_cast<uint64_t>(index), absl::StrCat("op ", index), nullptr};
  }

  absl::Status Submit(int index);
  absl::Status SubmitGather(int index, const ProgramOp& op, Live& live);
  absl::Status SubmitReduction(int index, const ProgramOp& op, Live& live);
  void Continue(Live& live);
  void ContinueWhatIsComplete();
  absl::Status SubmitAllReduce(int index, const ProgramOp& op, Live& live);
  absl::Status SubmitExchange(int index, const ProgramOp& op, Live& live);
  absl::Status SubmitBroadcast(int index, const ProgramOp& op, Live& live);
  absl::Status FinishOne(size_t place);
  absl::Status Complete(Live& live);
  absl::Status Check(Live& live);
  absl::Status CheckGather(Live& live, const ProgramOp& op);
  absl::Status CheckBounds(ProgramOutcome& outcome);

  void Fill(DType dtype, int rank, int64_t begin, int64_t count, std::byte* memory);
  template <typename Expected>
  absl::Status Compare(int index, DType dtype, int64_t count, const std::byte* memory,
                       const Expected& expected);

  Bootstrap& bootstrap_;
  const Program& program_;
  const ProgramRules rules_;
  const ProgramMistake* mistake_;
  Dice dice_;
  std::optional<EngineFixture> fixture_;
  ProcessGroup world_, shard_, replicate_;
  LaneId gather_lane_, world_gather_lane_, scatter_lane_, reduce_lane_, context_lane_, control_lane_;
  // Gathered images live as long as the run, and are filled again and again; and by whom last, while that is
  // live.
  std::vector<Buffer> images_;
  std::vector<Live*> last_filler_ = std::vector<Live*>(kImages, nullptr);
  std::deque<std::unique_ptr<Live>> live_;
};

absl::Status Runner::Open() {
  WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, [&]() -> absl::StatusOr<EngineFixture> {
    EngineFixture made;
    NodeHeap::Options heap;
    heap.segment_bytes = size_t{8} << 20;
    heap.timeout = program_.engine.timeout;
    heap.poison_released = true;
    WEFT_ASSIGN_OR_RETURN(made.heap, NodeHeap::Create(bootstrap_, heap));
    made.pool = std::make_unique<BufferPool>(*made.heap, "program");
    WEFT_ASSIGN_OR_RETURN(made.engine, CommEngine::Create(bootstrap_, *made.heap, program_.engine));
    return made;
  }());
  fixture_ = std::move(fixture);
  WEFT_ASSIGN_OR_RETURN(
      const DeviceMesh mesh,
      DeviceMesh::Create({{"replicate", -1}, {"shard", program_.shard_size}}, bootstrap_.size()));
  world_ = WorldGroup(bootstrap_);
  WEFT_ASSIGN_OR_RETURN(shard_, mesh.Group({"shard"}, bootstrap_.rank()));
  WEFT_ASSIGN_OR_RETURN(replicate_, mesh.Group({"replicate"}, bootstrap_.rank()));
  WEFT_ASSIGN_OR_RETURN(gather_lane_, AddLane(shard_, LanePurpose::kAllGather));
  WEFT_ASSIGN_OR_RETURN(world_gather_lane_, AddLane(world_, LanePurpose::kAllGather));
  WEFT_ASSIGN_OR_RETURN(scatter_lane_, AddLane(shard_, LanePurpose::kReduceScatter));
  WEFT_ASSIGN_OR_RETURN(reduce_lane_, AddLane(replicate_, LanePurpose::kAllReduce));
  WEFT_ASSIGN_OR_RETURN(context_lane_, AddLane(world_, LanePurpose::kContext));
  WEFT_ASSIGN_OR_RETURN(control_lane_, AddLane(world_, LanePurpose::kControl));
  for (int image = 0; image < kImages; ++image) {
    constexpr size_t kImageBytes = size_t{256} << 10;
    WEFT_ASSIGN_OR_RETURN(images_.emplace_back(), fixture_->pool->Acquire(kImageBytes));
  }
  return absl::OkStatus();
}

void Runner::Fill(DType dtype, int rank, int64_t begin, int64_t count, std::byte* memory) {
  WithType(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < count; ++i) {
      const T value = Arithmetic<T>::Random(rank, begin + i);
      std::memcpy(memory + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
    }
  });
}

// `expected(T{}, i)`: element i.
template <typename Expected>
absl::Status Runner::Compare(int index, DType dtype, int64_t count, const std::byte* memory,
                             const Expected& expected) {
  return WithType(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < count; ++i) {
      const T value = expected(T{}, i);
      if (std::memcmp(memory + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T)) == 0) continue;
      return absl::DataLossError(absl::StrCat("op ", index, ": element ", i, " of ", count, " is wrong"));
    }
    return absl::OkStatus();
  });
}

absl::Status Runner::SubmitGather(int index, const ProgramOp& op, Live& live) {
  const ProcessGroup& group = op.whole_world ? world_ : shard_;
  live.parts = PartsOf(op, group.size());
  const int64_t own = live.parts[static_cast<size_t>(group.group_rank)];
  WEFT_ASSIGN_OR_RETURN(live.input, MakeBuffer(op, own));
  Fill(op.dtype, bootstrap_.rank(), ValuesOf(index), own, live.input.data());
  OpOptions options = Options(index, op);
  Live*& last = last_filler_[static_cast<size_t>(op.image)];
  if (last != nullptr) {
    // This rank is done with the image; peers may not be.
    WEFT_RETURN_IF_ERROR(last->work.Wait());
    WEFT_RETURN_IF_ERROR(Check(*last));
    if (rules_.gate_images) options.gate = &last->work;
  }
  live.work = engine().AllGather(op.whole_world ? world_gather_lane_ : gather_lane_, live.input.data(),
                                 images_[static_cast<size_t>(op.image)].data(), op.dtype, Sum(live.parts),
                                 live.parts, options);
  last = &live;
  return absl::OkStatus();
}

absl::Status Runner::SubmitReduction(int index, const ProgramOp& op, Live& live) {
  live.parts = PartsOf(op, shard_.size());
  const int64_t own = live.parts[static_cast<size_t>(shard_.group_rank)];
  WEFT_ASSIGN_OR_RETURN(live.input, MakeBuffer(op, Sum(live.parts)));
  WEFT_ASSIGN_OR_RETURN(live.output, MakeBuffer(op, own));
  Fill(op.dtype, bootstrap_.rank(), ValuesOf(index), Sum(live.parts), live.input.data());
  live.work = engine().ReduceScatter(scatter_lane_, live.input.data(), live.output.data(), op.dtype,
                                     Sum(live.parts), ReduceOp::kSum, live.parts, Options(index, op));
  live.continue_later = !rules_.submit_in_program_order;
  if (!live.continue_later) Continue(live);
  return absl::OkStatus();
}

void Runner::Continue(Live& live) {
  const ProgramOp& op = program_.ops[static_cast<size_t>(live.op)];
  const int64_t own = live.parts[static_cast<size_t>(shard_.group_rank)];
  live.continue_later = false;
  live.continued = engine().AllReduce(reduce_lane_, live.output.data(), live.output.data(), op.dtype, own,
                                      ReduceOp::kSum, Options(live.op, op), &live.work);
}

void Runner::ContinueWhatIsComplete() {
  for (const auto& live : live_) {
    if (live->continue_later && live->work.Test()) Continue(*live);
  }
}

absl::Status Runner::SubmitAllReduce(int index, const ProgramOp& op, Live& live) {
  WEFT_ASSIGN_OR_RETURN(live.output, MakeBuffer(op, op.count));
  Fill(op.dtype, bootstrap_.rank(), ValuesOf(index), op.count, live.output.data());
  live.work = engine().AllReduce(context_lane_, live.output.data(), live.output.data(), op.dtype, op.count,
                                 ReduceOp::kSum, Options(index, op));
  return absl::OkStatus();
}

absl::Status Runner::SubmitExchange(int index, const ProgramOp& op, Live& live) {
  std::vector<int64_t> sent;
  for (int peer = 0; peer < world_.size(); ++peer) {
    sent.push_back(ExchangeCount(op, bootstrap_.rank(), peer));
    live.parts.push_back(ExchangeCount(op, peer, bootstrap_.rank()));
  }
  WEFT_ASSIGN_OR_RETURN(live.input, MakeBuffer(op, Sum(sent)));
  WEFT_ASSIGN_OR_RETURN(live.output, MakeBuffer(op, Sum(live.parts)));
  // Rank r's part for rank p starts at r's value number p * 4096.
  for (int peer = 0; peer < world_.size(); ++peer) {
    Fill(op.dtype, bootstrap_.rank(), ValuesOf(index) + int64_t{peer} * 4096, sent[static_cast<size_t>(peer)],
         live.input.At(Sum(sent, peer)));
  }
  live.work = engine().AllToAll(context_lane_, live.input.data(), sent, live.output.data(), live.parts,
                                op.dtype, Options(index, op));
  return absl::OkStatus();
}

absl::Status Runner::SubmitBroadcast(int index, const ProgramOp& op, Live& live) {
  const int root = op.root % world_.size();
  WEFT_ASSIGN_OR_RETURN(live.output, MakeBuffer(op, op.count));
  if (bootstrap_.rank() == root) Fill(op.dtype, root, ValuesOf(index), op.count, live.output.data());
  live.work =
      engine().Broadcast(control_lane_, live.output.data(), op.dtype, op.count, root, Options(index, op));
  return absl::OkStatus();
}

absl::Status Runner::Submit(int index) {
  ProgramOp op = program_.ops[static_cast<size_t>(index)];
  if (mistake_ != nullptr && index == static_cast<int>(program_.ops.size()) / 2) {
    using Kind = ProgramMistake::Kind;
    if (mistake_->kind == Kind::kOp) op.kind = ProgramOp::Kind::kExchange;
    if (mistake_->kind == Kind::kCount) op.count += 1;
    if (mistake_->kind == Kind::kDType) op.dtype = DType::kBF16;
    if (mistake_->kind == Kind::kOrder) ++index;
  }
  live_.push_back(std::make_unique<Live>());
  Live& live = *live_.back();
  live.op = index;
  switch (op.kind) {
    case ProgramOp::Kind::kGatherImage:
      return SubmitGather(index, op, live);
    case ProgramOp::Kind::kReduceGradients:
      return SubmitReduction(index, op, live);
    case ProgramOp::Kind::kAllReduce:
      return SubmitAllReduce(index, op, live);
    case ProgramOp::Kind::kExchange:
      return SubmitExchange(index, op, live);
    case ProgramOp::Kind::kBroadcast:
      return SubmitBroadcast(index, op, live);
    case ProgramOp::Kind::kBarrier:
      break;
  }
  live.work = engine().Barrier(control_lane_, Options(index, op));
  return absl::OkStatus();
}

absl::Status Runner::CheckGather(Live& live, const ProgramOp& op) {
  const ProcessGroup& group = op.whole_world ? world_ : shard_;
  const std::byte* memory = images_[static_cast<size_t>(op.image)].data();
  for (int member = 0; member < group.size(); ++member) {
    const int64_t count = live.parts[static_cast<size_t>(member)];
    const int rank = group.ranks[static_cast<size_t>(member)];
    WEFT_RETURN_IF_ERROR(Compare(live.op, op.dtype, count, memory, [&](auto type, int64_t i) {
      return Arithmetic<decltype(type)>::Random(rank, ValuesOf(live.op) + i);
    }));
    memory += static_cast<size_t>(count) * SizeOf(op.dtype);
  }
  return absl::OkStatus();
}

absl::Status Runner::Check(Live& live) {
  if (std::exchange(live.checked, true)) return absl::OkStatus();
  const ProgramOp& op = program_.ops[static_cast<size_t>(live.op)];
  const int64_t values = ValuesOf(live.op);
  switch (op.kind) {
    case ProgramOp::Kind::kGatherImage:
      return CheckGather(live, op);
    case ProgramOp::Kind::kReduceGradients: {
      const int64_t begin = values + Sum(live.parts, shard_.group_rank);
      const int64_t own = live.parts[static_cast<size_t>(shard_.group_rank)];
      return Compare(live.op, op.dtype, own, live.output.data(), [&](auto type, int64_t i) {
        using T = decltype(type);
        using A = Arithmetic<T>;
        const int shards = shard_.size();
        // One rounding after the shard group, one after the replicas.
        return A::Narrow(TreeSum<T>(0, replicate_.size(), [&](int replica) {
          return A::Widen(A::Narrow(TreeSum<T>(0, shards, [&](int shard) {
            return A::Widen(A::Random(replica * shards + shard, begin + i));
          })));
        }));
      });
    }
    case ProgramOp::Kind::kAllReduce:
      return Compare(live.op, op.dtype, op.count, live.output.data(), [&](auto type, int64_t i) {
        using T = decltype(type);
        using A = Arithmetic<T>;
        return A::Narrow(
            TreeSum<T>(0, world_.size(), [&](int rank) { return A::Widen(A::Random(rank, values + i)); }));
      });
    case ProgramOp::Kind::kExchange:
      for (int peer = 0; peer < world_.size(); ++peer) {
        const int64_t begin = values + int64_t{bootstrap_.rank()} * 4096;
        WEFT_RETURN_IF_ERROR(Compare(
            live.op, op.dtype, live.parts[static_cast<size_t>(peer)], live.output.At(Sum(live.parts, peer)),
            [&](auto type, int64_t i) { return Arithmetic<decltype(type)>::Random(peer, begin + i); }));
      }
      return absl::OkStatus();
    case ProgramOp::Kind::kBroadcast:
      return Compare(live.op, op.dtype, op.count, live.output.data(), [&](auto type, int64_t i) {
        return Arithmetic<decltype(type)>::Random(op.root % world_.size(), values + i);
      });
    case ProgramOp::Kind::kBarrier:
      break;
  }
  return absl::OkStatus();
}

absl::Status Runner::FinishOne(size_t place) {
  WEFT_RETURN_IF_ERROR(Complete(*live_[place]));
  for (Live*& last : last_filler_) {
    if (last == live_[place].get()) last = nullptr;
  }
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(place));
  return absl::OkStatus();
}

absl::Status Runner::Complete(Live& live) {
  WEFT_RETURN_IF_ERROR(live.work.Wait());
  if (live.continue_later) Continue(live);
  if (live.continued.valid()) WEFT_RETURN_IF_ERROR(live.continued.Wait());
  WEFT_RETURN_IF_ERROR(Check(live));
  if (!rules_.free_after_release) {
    live.input = {};
    live.output = {};
  }
  WEFT_RETURN_IF_ERROR(live.work.WaitReleased());
  return live.continued.valid() ? live.continued.WaitReleased() : absl::OkStatus();
}

absl::Status Runner::CheckBounds(ProgramOutcome& outcome) {
  const EngineCounters counters = engine().counters();
  outcome.operations = counters.operations;
  outcome.yielded_peak_bytes = counters.yielded_peak_bytes;
  constexpr int kLanes = 6;
  constexpr int kPhases = 2;
  const EngineOptions& options = program_.engine;
  const int64_t bound =
      std::max(options.yield_window_bytes, options.slice_bytes) + kLanes * kPhases * options.slice_bytes;
  if (counters.yielded_peak_bytes <= bound) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      counters.yielded_peak_bytes, " bytes of lower lanes were asked for beside a more urgent one, at most ",
      bound, " are allowed"));
}

absl::Status Runner::Run(ProgramOutcome& outcome) {
  WEFT_RETURN_IF_ERROR(Open());
  constexpr size_t kMostLive = 6;
  const auto finish_any = [&] {
    return FinishOne(static_cast<size_t>(dice_.Between(0, static_cast<int64_t>(live_.size()) - 1)));
  };
  for (int index = 0; index < static_cast<int>(program_.ops.size()); ++index) {
    if (dice_.Chance(50)) bootstrap_.runtime().Nap(dice_.Between(0, 50'000));
    ContinueWhatIsComplete();
    WEFT_RETURN_IF_ERROR(Submit(index));
    while (live_.size() > kMostLive || (!live_.empty() && dice_.Chance(30)))
      WEFT_RETURN_IF_ERROR(finish_any());
  }
  while (!live_.empty()) WEFT_RETURN_IF_ERROR(finish_any());
  return CheckBounds(outcome);
}

}  // namespace

std::string Program::ToString() const {
  return absl::StrCat("seed ", seed, ": ", nodes.size(), " ranks on ", nodes.node_count(), " nodes, ",
                      nodes.size() / shard_size, " x ", shard_size, ", ", ops.size(), " operations");
}

Program DrawProgram(uint64_t seed, int max_ranks) {
  Dice dice(seed);
  Program program;
  program.seed = seed;
  const int ranks = static_cast<int>(dice.Between(2, max_ranks));
  program.nodes = NodeMap::RanksPerNode(ranks, static_cast<int>(dice.Between(1, ranks)));
  program.shard_size = DivisorOf(ranks, dice);
  program.engine.timeout = absl::Seconds(60);
  program.engine.slice_bytes = dice.OneOf<int64_t>({64, 256, 1024});
  program.engine.piece_bytes = dice.OneOf<int64_t>({64, 512, 4096});
  program.engine.lane_window_bytes = program.engine.slice_bytes * dice.Between(1, 4);
  program.engine.yield_window_bytes = program.engine.slice_bytes * dice.Between(1, 3);
  const int64_t ops = dice.Between(4, 40);
  for (int64_t i = 0; i < ops; ++i) program.ops.push_back(DrawOp(dice));
  return program;
}

SimOptions DrawMachine(uint64_t seed) {
  Dice dice(seed ^ 0x5eedULL);
  SimOptions machine;
  machine.seed = seed;
  machine.poll_ns = dice.OneOf<int64_t>({1'000, 4'000});
  machine.jitter = dice.OneOf({0.0, 1.0, 5.0, 20.0});
  machine.memory_speed = dice.OneOf({0.05, 0.5, 8.0});
  machine.wire_speed = dice.OneOf({0.02, 0.1, 1.25});
  machine.wire_latency_ns = dice.OneOf<int64_t>({1'000, 20'000, 100'000});
  if (dice.Chance(25)) machine.slow = {{static_cast<int>(dice.Between(0, 15)), dice.OneOf({3.0, 10.0})}};
  return machine;
}

absl::Status RunProgram(Bootstrap& bootstrap, const Program& program, const ProgramRules& rules,
                        const ProgramMistake* mistake, ProgramOutcome& outcome) {
  return Runner(bootstrap, program, rules, mistake).Run(outcome);
}

ScheduleReport RunSchedule(const Program& program, const SimOptions& machine, const ProgramRules& rules,
                           const ProgramMistake* mistake) {
  ScheduleReport report;
  std::vector<ProgramOutcome> outcomes(static_cast<size_t>(program.nodes.size()));
  report.simulation = RunSimulatedRanks(program.nodes, machine, [&](Bootstrap& bootstrap) {
    return RunProgram(bootstrap, program, rules, mistake, outcomes[static_cast<size_t>(bootstrap.rank())]);
  });
  for (const ProgramOutcome& outcome : outcomes) report.operations += outcome.operations;
  return report;
}

}  // namespace weft::testing
