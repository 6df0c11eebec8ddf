#include "src/mesh/simulation/simulator.h"

#include <algorithm>
#include <utility>

#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft::internal {

Simulator::Simulator(const SimOptions& options) : options_(options), random_(options.seed) {}

double Simulator::Draw() {
  constexpr int kMantissaBits = 53;
  return static_cast<double>(random_() >> (64 - kMantissaBits)) / static_cast<double>(1ULL << kMantissaBits);
}

int64_t Simulator::Delay(int rank, int64_t ns) {
  double factor = 1.0 + options_.jitter * Draw();
  if (options_.slow && options_.slow->rank == rank) factor *= options_.slow->factor;
  return static_cast<int64_t>(static_cast<double>(ns) * factor);
}

void Simulator::At(int64_t time_ns, std::function<void()> action) {
  queue_.push({std::max(time_ns, now_ns_), next_order_++, std::move(action)});
}

bool Simulator::IsDead(int rank) const {
  return options_.death && options_.death->rank == rank && now_ns_ >= options_.death->at_ns;
}

Simulator::FibreId Simulator::Start(int rank, std::function<void()> body) {
  const FibreId id = fibres_.size();
  fibres_.push_back(std::make_unique<RankFibre>(rank, std::move(body)));
  ++unfinished_;
  Unpark(id, Delay(rank, options_.wake_ns));
  return id;
}

void Simulator::Run() {
  while (unfinished_ > 0 && !queue_.empty()) {
    // The action may push: it must not stay in the queue.
    auto event = std::move(const_cast<Event&>(queue_.top()));
    queue_.pop();
    now_ns_ = event.time_ns;
    ++events_;
    fingerprint_ = Hash64(&now_ns_, sizeof(now_ns_), fingerprint_);
    event.action();
  }
}

void Simulator::Resume(FibreId id, uint64_t sleep) {
  RankFibre& fibre = *fibres_[id];
  if (fibre.sleep != sleep || fibre.fibre.finished() || IsDead(fibre.rank)) return;
  ++fibre.sleep;
  running_ = id;
  fibre.fibre.Resume();
  running_.reset();
  if (!fibre.fibre.finished()) return;
  --unfinished_;
  if (fibre.joiner) Unpark(*fibre.joiner, 0);
}

void Simulator::Park(std::optional<int64_t> until_ns) {
  const FibreId id = running();
  if (until_ns) At(*until_ns, [this, id, sleep = fibres_[id]->sleep] { Resume(id, sleep); });
  fibres_[id]->fibre.Suspend();
}

void Simulator::Unpark(FibreId id, int64_t delay_ns) {
  At(now_ns_ + delay_ns, [this, id, sleep = fibres_[id]->sleep] { Resume(id, sleep); });
}

void Simulator::Join(FibreId id) {
  fibres_[id]->joiner = running();
  while (!fibres_[id]->fibre.finished()) Park(std::nullopt);
  fibres_[id]->joiner.reset();
}

void Simulator::SleepOn(const void* word, int64_t timeout_ns) {
  const FibreId id = running();
  const int rank = fibres_[id]->rank;
  sleepers_[word].push_back(id);
  Park(now_ns_ + timeout_ns + Delay(rank, options_.wake_ns));
  const auto found = sleepers_.find(word);
  if (found == sleepers_.end()) return;
  std::erase(found->second, id);
  if (found->second.empty()) sleepers_.erase(found);
}

void Simulator::WakeAll(const void* word) {
  const auto found = sleepers_.find(word);
  if (found == sleepers_.end()) return;
  for (const FibreId id : found->second) Unpark(id, Delay(fibres_[id]->rank, options_.wake_ns));
}

}  // namespace weft::internal
