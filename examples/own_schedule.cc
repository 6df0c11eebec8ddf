// A schedule of one's own: the order and the priorities of gathers and reductions, compared with the built-in
// rules on a simulated cluster. No rank is started, and nothing is trained. Prints both forecasts.
#include <cstdio>
#include <memory>
#include <vector>
#include <weft/sharding/schedule_rules.h>
#include <weft/train/planner.h>

using namespace weft;

// Gathers one more group ahead in backward, and reduces in pairs: when the second group of a pair is done,
// the older one goes first. Reductions are as urgent as gathers.
class PairedReductions final : public PrefetchRules {
 public:
  explicit PairedReductions(int depth) : PrefetchRules(depth), backward_(depth + 1) {}

  std::vector<int> GathersAhead(PassPart part, int group, absl::Span<const int> next) const override {
    return part == PassPart::kForward ? PrefetchRules::GathersAhead(part, group, next)
                                      : backward_.GathersAhead(part, group, next);
  }
  std::vector<int> Reductions(int /*group*/, absl::Span<const int> complete) const override {
    if (complete.size() < 2) return {};
    return {complete.begin(), complete.end()};
  }
  Priority ReductionPriority(int /*group*/) const override { return Priority::kPrefetch; }

 private:
  PrefetchRules backward_;
};

absl::Status Compare() {
  TrainConfig config;
  config.model.layers = 6;
  config.model.dim = 64;
  config.model.heads = 4;
  config.data.seq_len = 128;
  PlanOptions cluster;
  cluster.ranks = 8;
  cluster.hosts = 4;
  cluster.cores = 2;
  cluster.link = "1gbit:50us";
  cluster.flops = "50gf";
  constexpr int kDepth = 2;
  const auto print = [](const char* name, const StepForecast& step) {
    std::printf(
        "%-10s %6.2f ms a step, %6.2f ms of it exposed, %5.1f KiB of gathered weights, %5.1f KiB of "
        "gradients\n",
        name, step.step_ms, step.exposed_ms, static_cast<double>(step.peak_image_bytes) / 1024,
        static_cast<double>(step.peak_gradient_bytes) / 1024);
  };
  WEFT_ASSIGN_OR_RETURN(const StepForecast built_in, ForecastStep(config, cluster));
  print("built-in", built_in);
  WEFT_ASSIGN_OR_RETURN(const StepForecast own,
                        ForecastStep(config, cluster, std::make_shared<PairedReductions>(kDepth)));
  print("paired", own);
  return absl::OkStatus();
}

int main() {
  const absl::Status status = Compare();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
