#include "src/mesh/simulation/sim_runtime.h"

#include <utility>

namespace weft::internal {
namespace {

class FiberTask final : public Runtime::Task {
 public:
  FiberTask(Simulator& simulator, Simulator::FiberId id) : simulator_(simulator), id_(id) {}
  ~FiberTask() override { simulator_.Join(id_); }

 private:
  Simulator& simulator_;
  Simulator::FiberId id_;
};

}  // namespace

void SimRuntime::Move(MoveSize size, absl::FunctionRef<void()> move) {
  const SimOptions& machine = simulator_.options();
  const double cross_speed = machine.cross_domain_speed.value_or(machine.memory_speed);
  const double slower_by = 1 / cross_speed - 1 / machine.memory_speed;  // For each byte that crosses, in ns.
  const auto ns = static_cast<int64_t>(static_cast<double>(size.bytes) / machine.memory_speed +
                                       static_cast<double>(size.cross_domain_bytes) * slower_by);
  const int64_t duration = simulator_.Delay(rank_, ns);
  const auto before = static_cast<int64_t>(simulator_.Draw() * static_cast<double>(duration));
  simulator_.ChargeDebt(rank_);
  simulator_.Compute(rank_, before, 1);
  move();
  simulator_.Compute(rank_, duration - before, 1);
}

absl::StatusOr<std::unique_ptr<Runtime::Task>> SimRuntime::Start(std::string_view /*purpose*/,
                                                                 std::function<void()> body) {
  return std::make_unique<FiberTask>(simulator_, simulator_.Start(rank_, std::move(body)));
}

}  // namespace weft::internal
