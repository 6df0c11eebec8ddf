#include "weft/train/planner.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "src/train/config/flag_error.h"
#include "src/train/plan/inputs.h"
#include "src/train/plan/memory_need.h"
#include "src/train/plan/run_plan.h"
#include "src/train/planner/costs_file.h"
#include "src/train/planner/measure.h"
#include "src/train/planner/memory_forecast.h"
#include "src/train/planner/plan_json.h"
#include "src/train/planner/plan_report.h"
#include "src/train/planner/replay.h"
#include "weft/core/size_text.h"
#include "weft/core/status.h"
#include "weft/core/topology.h"
#include "weft/mesh/host_memory.h"

namespace weft {
namespace {

constexpr int64_t kMaxRanks = 1024;
constexpr int64_t kMaxSimulatedRanks = 256;  // Of more, a forecast takes minutes.
constexpr int64_t kMaxCores = 4096;
constexpr int64_t kMostNamedHosts = 16;              // With more hosts, the command takes a file of them.
constexpr int64_t kMaxMemoryGib = int64_t{1} << 32;  // Its bytes are an int64_t.

int CoresOf(const PlanOptions& options) {
  if (options.cores) return static_cast<int>(*options.cores);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

class Planner {
 public:
  Planner(const TrainConfig& config, const PlanOptions& options,
          std::shared_ptr<const ScheduleRules> rules = nullptr)
      : config_(config), options_(options), rules_(std::move(rules)) {}

  absl::StatusOr<TrainingPlan> Plan() {
    WEFT_ASSIGN_OR_RETURN(const std::vector<MeshSize> meshes, Prepare());
    PlanReport report;
    WEFT_ASSIGN_OR_RETURN(report.candidates, ForecastAll(meshes));
    report.costs = absl::StrCat(costs_.source, ReasonOfTimes(meshes));
    Rank(report.candidates);
    Describe(report);
    return TrainingPlan{options_.json ? FormatJson(report) : FormatText(report), !report.command.empty()};
  }

  // REQUIRES: options.all_meshes is off.
  absl::StatusOr<StepForecast> ForecastOne() {
    WEFT_ASSIGN_OR_RETURN(const std::vector<MeshSize> meshes, Prepare());
    WEFT_ASSIGN_OR_RETURN(const Candidate candidate, Forecast(meshes.front()));
    const ReplayResult& step = *candidate.step;
    return StepForecast{step.step_ms,
                        step.compute_ms,
                        step.exposed_ms,
                        step.wire_bytes,
                        static_cast<int64_t>(step.peaks.image_bytes),
                        static_cast<int64_t>(step.peaks.gradient_bytes)};
  }

 private:
  // Opens the inputs and the costs. Returns the meshes to forecast.
  absl::StatusOr<std::vector<MeshSize>> Prepare() {
    WEFT_RETURN_IF_ERROR(CheckOptions());
    WEFT_ASSIGN_OR_RETURN(link_, LinkSpeed::Parse(options_.link));
    if (!options_.flops.empty()) {
      WEFT_ASSIGN_OR_RETURN(flops_, ParseFlops(options_.flops));
    }
    WEFT_ASSIGN_OR_RETURN(inputs_, OpenModel(config_));
    WEFT_ASSIGN_OR_RETURN(model_, CreateModel(*inputs_));  // Counts the elements of adapters.
    cores_ = CoresOf(options_);
    threads_ = static_cast<int>(std::max<int64_t>(1, cores_ / ranks_per_host()));
    WEFT_RETURN_IF_ERROR(FindMemory());
    const std::string path = CostsPath(options_);
    WEFT_ASSIGN_OR_RETURN(costs_, ReadCosts(options_, path));
    WEFT_ASSIGN_OR_RETURN(std::vector<MeshSize> meshes, Meshes());
    if (options_.measure) WEFT_RETURN_IF_ERROR(Measure(meshes, path));
    if (flops_) costs_.rates.flops_f32 = costs_.rates.flops_bf16 = *flops_;  // Not in the file of costs.
    return meshes;
  }

  int64_t ranks_per_host() const { return options_.ranks / options_.hosts; }

  absl::Status CheckOptions() const {
    if (options_.ranks < 1 || options_.ranks > kMaxRanks) {
      return BadFlag("ranks", options_.ranks, absl::StrCat("must be from 1 to ", kMaxRanks));
    }
    if (options_.hosts < 1 || options_.ranks % options_.hosts != 0) {
      return BadFlag("hosts", options_.hosts, absl::StrCat("must divide the ", options_.ranks, " ranks"));
    }
    if (options_.numa_nodes < 1 || ranks_per_host() % options_.numa_nodes != 0) {
      return BadFlag("numa-nodes", options_.numa_nodes,
                     absl::StrCat("must divide the ", ranks_per_host(), " ranks of a host"));
    }
    if (options_.numa_gb_s && !(*options_.numa_gb_s > 0)) {
      return BadFlag("numa-speed", *options_.numa_gb_s, "must be positive");
    }
    if (options_.cores && (*options_.cores < 1 || *options_.cores > kMaxCores)) {
      return BadFlag("cores", *options_.cores, absl::StrCat("must be from 1 to ", kMaxCores));
    }
    if (options_.memory_gib && !(*options_.memory_gib > 0 && *options_.memory_gib <= kMaxMemoryGib)) {
      return BadFlag("memory", *options_.memory_gib,
                     absl::StrCat("must be positive and at most ", kMaxMemoryGib));
    }
    return absl::OkStatus();
  }

  absl::Status FindMemory() {
    if (options_.memory_gib) {
      memory_ = static_cast<int64_t>(*options_.memory_gib * (1 << 30));
      return absl::OkStatus();
    }
    WEFT_ASSIGN_OR_RETURN(const size_t available, AvailableHostMemory());
    memory_ = static_cast<int64_t>(available);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<MeshSize>> Meshes() const {
    const int64_t context = config_.parallel.context.size;
    if (options_.all_meshes && options_.ranks % context == 0) return AllMeshes(options_.ranks, context);
    // The plan checks that the sizes fit the ranks, and fills in a -1.
    WEFT_ASSIGN_OR_RETURN(const RunPlan plan, MakeRunPlan(config_, *inputs_, Nodes()));
    return std::vector<MeshSize>{{plan.replicate_size, plan.shard_size, plan.context.size}};
  }

  // Placeholders for the names of several hosts with their slots. Without slots, mpirun counts one a host.
  std::string HostNames() const {
    if (options_.hosts == 1) return "";
    if (options_.hosts > kMostNamedHosts) return " --hostfile HOSTFILE";
    std::string names = " --host ";
    for (int64_t host = 1; host <= options_.hosts; ++host)
      absl::StrAppend(&names, host == 1 ? "" : ",", "HOST", host, ":", ranks_per_host());
    return names;
  }

  // mpirun's flags that place the ranks as the forecast does. Without them, mpirun binds each rank to a core
  // or a socket, and starts at most one rank on each physical core.
  std::string Mapping() const {
    const int64_t slots = options_.cores ? cores_ : HostTopology().cores;
    const std::string start = absl::StrCat(ranks_per_host() > slots ? " --oversubscribe" : "", HostNames());
    if (options_.numa_nodes > 1) {
      return absl::StrCat(start, " --map-by ppr:", ranks_per_host() / options_.numa_nodes,
                          ":numa --bind-to numa:overload-allowed");
    }
    return absl::StrCat(start,
                        options_.hosts > 1 ? absl::StrCat(" --map-by ppr:", ranks_per_host(), ":node") : "",
                        " --bind-to none");
  }

  NodeMap Nodes() const {
    NodeMap nodes =
        NodeMap::RanksPerNode(static_cast<int>(options_.ranks), static_cast<int>(ranks_per_host()));
    const int64_t ranks_per_numa_node = ranks_per_host() / options_.numa_nodes;
    for (int64_t rank = 0; rank < options_.ranks; ++rank)
      nodes.numa_of_rank.push_back(static_cast<int>(rank % ranks_per_host() / ranks_per_numa_node));
    return nodes;
  }

  TrainConfig ConfigOf(const MeshSize& mesh) const {
    TrainConfig config = config_;
    config.parallel.dp_replicate = mesh.replicate;
    config.parallel.dp_shard = mesh.shard;
    return config;
  }

  absl::Status Measure(const std::vector<MeshSize>& meshes, const std::string& path) {
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    if (threads_ > cores) {
      return absl::InvalidArgumentError(
          absl::StrCat("--measure with ", Count(threads_, "thread"), " a rank: this machine has ",
                       Count(cores, "core"), ". Measure with --cores ", cores * ranks_per_host(),
                       " at most, then plan without --measure, which scales the times"));
    }
    const double wire_gb_s = costs_.rates.wire_gb_s;
    costs_.rates = MeasureRates(cores);
    costs_.rates.wire_gb_s = wire_gb_s;
    std::vector<PartShape> shapes;
    for (const MeshSize& mesh : meshes) {
      const absl::StatusOr<RunPlan> plan = MakeRunPlan(ConfigOf(mesh), *inputs_, Nodes());
      if (!plan.ok()) continue;  // Forecast reports it.
      const PartShape shape = ShapeOfMicrobatch(inputs_->model, *plan, threads_);
      if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
    }
    for (const PartShape& shape : shapes) {
      WEFT_ASSIGN_OR_RETURN(const MeasuredModel model,
                            MeasureModel(inputs_->model, inputs_->lora, shape, cores));
      costs_.Add(model);
    }
    WEFT_RETURN_IF_ERROR(WriteCosts(costs_, path));
    costs_.source = absl::StrCat("measured now on this machine, stored in ", path);
    return absl::OkStatus();
  }

  // Meshes are simulated on all cores at once, unless they would then share too little memory to be as exact
  // as alone.
  absl::StatusOr<std::vector<Candidate>> ForecastAll(const std::vector<MeshSize>& meshes) const {
    const auto threads = static_cast<int>(
        std::clamp<size_t>(std::thread::hardware_concurrency(), 1, std::max<size_t>(1, meshes.size())));
    std::vector<std::optional<int64_t>> divisors(meshes.size());
    bool at_once = true;
    for (size_t i = 0; i < meshes.size() && at_once; ++i) {
      const absl::StatusOr<RunPlan> plan = MakeRunPlan(ConfigOf(meshes[i]), *inputs_, Nodes());
      if (!plan.ok()) continue;  // Forecast reports it.
      const ReplayInput input = InputOf(*plan, {});
      const absl::StatusOr<int64_t> alone = ChooseDivisor(input);
      const absl::StatusOr<int64_t> shared = ChooseDivisor(input, threads);
      at_once = alone.ok() && shared.ok() && *alone == *shared;
      if (at_once) divisors[i] = *alone;  // Later, less memory is free.
    }
    std::vector<absl::StatusOr<Candidate>> forecasts(meshes.size());
    std::atomic<size_t> next = 0;
    const auto work = [&] {
      for (size_t i = next++; i < meshes.size(); i = next++) {
        forecasts[i] = Forecast(meshes[i], at_once ? divisors[i] : std::nullopt);
      }
    };
    std::vector<std::thread> others;
    for (int i = 1; at_once && i < threads; ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
    std::vector<Candidate> candidates;
    for (absl::StatusOr<Candidate>& forecast : forecasts) {
      WEFT_ASSIGN_OR_RETURN(candidates.emplace_back(), std::move(forecast));
    }
    return candidates;
  }

  ReplayInput InputOf(const RunPlan& plan, const ModelTimes& times) const {
    return {.model = inputs_->model,
            .lora = inputs_->lora,
            .plan = plan,
            .nodes = Nodes(),
            .times = times,
            .rates = costs_.rates,
            .link = link_,
            .numa_gb_s = options_.numa_gb_s,
            .cores = cores_,
            .threads = threads_,
            .rules = rules_};
  }

  absl::StatusOr<Candidate> Forecast(const MeshSize& mesh,
                                     std::optional<int64_t> divisor = std::nullopt) const {
    Candidate candidate{.mesh = mesh, .error = "", .step = std::nullopt, .memory = {}, .tokens = 0};
    const TrainConfig config = ConfigOf(mesh);
    const absl::StatusOr<RunPlan> plan = MakeRunPlan(config, *inputs_, Nodes());
    if (!plan.ok()) {
      if (!options_.all_meshes) return plan.status();
      candidate.error = std::string(plan.status().message());
      return candidate;
    }
    const bool alike = NodesAreAlike(*plan, Nodes());
    if ((alike ? ranks_per_host() : options_.ranks) > kMaxSimulatedRanks) {
      const absl::Status refused = BadFlag(
          "hosts", options_.hosts,
          absl::StrCat("must leave at most ", kMaxSimulatedRanks,
                       " ranks to simulate: with more ranks, hosts need a power of two of them each, and "
                       "groups that divide a host or fill hosts"));
      if (!options_.all_meshes) return refused;
      candidate.error = std::string(refused.message());
      return candidate;
    }
    const TimesChoice choice = TimesOf(*plan);
    ReplayInput input = InputOf(*plan, choice.times);
    input.divisor = divisor;
    WEFT_ASSIGN_OR_RETURN(candidate.step, ReplayStep(input));
    candidate.tokens = plan->tokens_per_step();
    const MemoryNeed need = NeedOf(*model_, *plan);
    candidate.memory = ForecastMemory(inputs_->model, need, *plan, Nodes(), *candidate.step);
    const absl::Status fits = CheckFits(need, static_cast<int>(ranks_per_host()), memory_, kMemoryRemedies);
    if (!fits.ok()) candidate.error = absl::StrCat("does not fit: ", fits.message());
    return candidate;
  }

  TimesChoice TimesOf(const RunPlan& plan) const {
    const PartShape shape = ShapeOfMicrobatch(inputs_->model, plan, threads_);
    if (!flops_) return ChooseTimes(costs_, shape);
    return TimesChoice{TimesAtRate(shape, *flops_), "computation at --flops", nullptr, false};
  }

  // Says where times come from, after "; ", for the last mesh that has a plan. Empty without one.
  std::string ReasonOfTimes(const std::vector<MeshSize>& meshes) const {
    for (auto mesh = meshes.rbegin(); mesh != meshes.rend(); ++mesh) {
      const absl::StatusOr<RunPlan> plan = MakeRunPlan(ConfigOf(*mesh), *inputs_, Nodes());
      if (plan.ok()) return absl::StrCat("; ", TimesOf(*plan).reason);
    }
    return "";
  }

  void Describe(PlanReport& report) const {
    const LlamaConfig& model = inputs_->model;
    report.model = absl::StrFormat("%s, dim %d, %s, %s, ffn %d, vocabulary %d, %.1f M parameters",
                                   Count(model.layers, "layer"), model.dim, Count(model.heads, "head"),
                                   Count(model.kv_heads, "kv head"), model.ffn_dim, model.vocab_size,
                                   static_cast<double>(model.ParameterCount()) / 1e6);
    if (inputs_->lora) {
      absl::StrAppendFormat(&report.model, ", adapters of rank %d with %.1f M", inputs_->lora->rank,
                            static_cast<double>(inputs_->adapter_elements) / 1e6);
    }
    const auto& batch_size = config_.data.batch_size;
    report.batch = absl::StrCat(
        Count(batch_size.value_or(1), "sequence"), " of ", Count(config_.data.seq_len, "token"),
        batch_size ? "" : " for each data-parallel rank and microbatch", ", ", config_.data.grad_accum,
        config_.data.grad_accum == 1 ? " microbatch, " : " microbatches, ",
        ToAbsl(Name(config_.parallel.param_dtype)));
    report.machine = absl::StrCat(Count(options_.hosts, "host"), ", ", Count(ranks_per_host(), "rank"),
                                  " and ", Count(cores_, "core"), " on each, ", NumaNodes(),
                                  absl::StrFormat("%.1f GiB", static_cast<double>(memory_) / (1 << 30)),
                                  options_.hosts > 1 ? absl::StrCat(", link ", link_.ToString()) : "");
    report.assumptions = Assumptions(report.candidates);
    if (report.candidates.empty() || !report.candidates.front().fits()) return;
    report.command =
        absl::StrCat("mpirun -n ", options_.ranks, Mapping(), " weft train ", options_.train_arguments,
                     options_.train_arguments.empty() ? "" : " ", report.candidates.front().mesh.Flags());
  }

  std::string NumaNodes() const {
    if (options_.numa_nodes == 1) return "";
    return absl::StrFormat("%d NUMA nodes, of which a core reads another at %.3g GB/s, ", options_.numa_nodes,
                           options_.numa_gb_s.value_or(costs_.rates.copy_gb_s / 2));
  }

  std::vector<std::string> Assumptions(const std::vector<Candidate>& candidates) const {
    std::vector<std::string> list = {"all ranks compute alike, and nothing else runs on the hosts"};
    if (ranks_per_host() > cores_)
      list.emplace_back("more ranks than cores: ranks that compute share the cores");
    if (options_.hosts > 1) {
      list.emplace_back("links carry nothing else, and weights and gradients are not compressed");
    }
    if (config_.parallel.context.size > 1 && inputs_->model.sparse_attention) {
      list.emplace_back("sparse attention over split sequences exchanges its bytes in one gather a layer");
    }
    if (inputs_->model.traits.window && inputs_->model.traits.first_window_layer > 0) {
      list.emplace_back("layers with a window take as long as those without");
    }
    int64_t divisor = 1;
    for (const Candidate& candidate : candidates) {
      if (candidate.step) divisor = std::max(divisor, candidate.step->divisor);
    }
    if (divisor > 1) {
      list.push_back(absl::StrCat("simulated at 1/", divisor, " of the sizes and speeds: memory is rounded"));
    }
    return list;
  }

  const TrainConfig& config_;
  const PlanOptions& options_;
  const std::shared_ptr<const ScheduleRules> rules_;
  LinkSpeed link_;
  std::optional<double> flops_;  // Given by --flops.
  std::optional<TrainInputs> inputs_;
  std::unique_ptr<LlamaModel> model_;  // Without weights.
  MachineCosts costs_;
  int cores_ = 1;
  int threads_ = 1;
  int64_t memory_ = 0;  // Of a host.
};

}  // namespace

absl::StatusOr<TrainingPlan> PlanTraining(const TrainConfig& config, const PlanOptions& options) {
  return Planner(config, options).Plan();
}

absl::StatusOr<StepForecast> ForecastStep(const TrainConfig& config, const PlanOptions& options,
                                          std::shared_ptr<const ScheduleRules> rules) {
  PlanOptions of_one = options;
  of_one.all_meshes = false;
  return Planner(config, of_one, std::move(rules)).ForecastOne();
}

}  // namespace weft
