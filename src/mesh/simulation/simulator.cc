#include "src/mesh/simulation/simulator.h"

#include <algorithm>
#include <utility>

#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft::internal {

Simulator::Simulator(const SimOptions& options, const NodeMap& nodes)
    : options_(options),
      nodes_(nodes),
      cores_(options.cores ? static_cast<size_t>(nodes.node_count()) : 0,
             SharedCores(options.cores.value_or(1))),
      debts_ns_(static_cast<size_t>(nodes.size())),
      random_(options.seed) {}

void Simulator::Compute(int rank, int64_t ns, int threads) {
  if (cores_.empty()) return Park(now_ns_ + ns);
  if (ns == 0) return;
  SharedCores& cores = cores_[static_cast<size_t>(nodes_.node_of_rank[static_cast<size_t>(rank)])];
  const double end = cores.Begin(now_ns_, static_cast<double>(ns), threads);
  while (const int64_t left_ns = cores.Remaining(now_ns_, end)) {
    SleepOn(&cores, left_ns, /*wake_ns=*/0);
  }
  if (cores.End(now_ns_, threads)) WakeAll(&cores, /*wake_ns=*/0);
}

std::shared_ptr<const void> Simulator::SharedBetweenRanks(
    uint64_t key, absl::FunctionRef<std::shared_ptr<const void>()> make) {
  std::shared_ptr<const void>& shared = shared_[key];
  if (shared == nullptr) shared = make();
  return shared;
}

void Simulator::ChargeDebt(int rank) {
  if (const int64_t ns = std::exchange(debts_ns_[static_cast<size_t>(rank)], 0); ns > 0) Compute(rank, ns, 1);
}

double Simulator::Draw() {
  constexpr int kMantissaBits = 53;
  return static_cast<double>(random_() >> (64 - kMantissaBits)) / static_cast<double>(1ULL << kMantissaBits);
}

int64_t Simulator::Delay(int rank, int64_t ns) {
  double factor = 1.0 + options_.jitter * Draw();
  if (options_.slow && options_.slow->rank == rank) factor *= options_.slow->factor;
  return static_cast<int64_t>(static_cast<double>(ns) * factor);
}

void Simulator::Push(int64_t time_ns, size_t target, uint64_t sleep) {
  queue_.push({std::max(time_ns, now_ns_), next_order_++, target, sleep});
}

void Simulator::At(int64_t time_ns, absl::AnyInvocable<void()> action) {
  if (free_actions_.empty()) {
    free_actions_.push_back(actions_.size());
    actions_.emplace_back();
  }
  const size_t index = free_actions_.back();
  free_actions_.pop_back();
  actions_[index] = std::move(action);
  Push(time_ns, index, kAction);
}

void Simulator::RunAction(size_t index) {
  absl::AnyInvocable<void()> action = std::move(actions_[index]);  // The action may add actions.
  free_actions_.push_back(index);
  action();
}

bool Simulator::IsDead(int rank) const {
  return options_.death && options_.death->rank == rank && now_ns_ >= options_.death->at_ns;
}

Simulator::FiberId Simulator::Start(int rank, std::function<void()> body) {
  const FiberId id = fibers_.size();
  fibers_.push_back(std::make_unique<RankFiber>(rank, id < kGuardedFibers, std::move(body)));
  ++unfinished_;
  Unpark(id, Delay(rank, options_.wake_ns));
  return id;
}

void Simulator::Run() {
  while (unfinished_ > 0 && !queue_.empty()) {
    const Event event = queue_.top();
    queue_.pop();
    now_ns_ = event.time_ns;
    ++events_;
    fingerprint_ = Hash64(&now_ns_, sizeof(now_ns_), fingerprint_);
    if (event.sleep == kAction) {
      RunAction(event.target);
    } else {
      Resume(event.target, event.sleep);
    }
  }
}

void Simulator::Resume(FiberId id, uint64_t sleep) {
  RankFiber& fiber = *fibers_[id];
  if (fiber.sleep != sleep || fiber.fiber.finished() || IsDead(fiber.rank)) return;
  ++fiber.sleep;
  running_ = id;
  fiber.fiber.Resume();
  running_.reset();
  if (!fiber.fiber.finished()) return;
  --unfinished_;
  if (fiber.joiner) Unpark(*fiber.joiner, 0);
}

void Simulator::Park(std::optional<int64_t> until_ns) {
  const FiberId id = running();
  if (until_ns) ResumeAt(*until_ns, id);
  fibers_[id]->fiber.Suspend();
}

void Simulator::Unpark(FiberId id, int64_t delay_ns) { ResumeAt(now_ns_ + delay_ns, id); }

void Simulator::Join(FiberId id) {
  fibers_[id]->joiner = running();
  while (!fibers_[id]->fiber.finished()) Park(std::nullopt);
  fibers_[id]->joiner.reset();
}

void Simulator::SleepOn(const void* word, int64_t timeout_ns, int64_t wake_ns) {
  const FiberId id = running();
  const int rank = fibers_[id]->rank;
  sleepers_[word].push_back(id);
  Park(now_ns_ + timeout_ns + Delay(rank, wake_ns));
  const auto found = sleepers_.find(word);
  if (found == sleepers_.end()) return;
  std::erase(found->second, id);
  if (found->second.empty()) sleepers_.erase(found);
}

void Simulator::WakeAll(const void* word, int64_t wake_ns) {
  const auto found = sleepers_.find(word);
  if (found == sleepers_.end()) return;
  for (const FiberId id : found->second) Unpark(id, Delay(fibers_[id]->rank, wake_ns));
}

}  // namespace weft::internal
