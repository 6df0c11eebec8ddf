#include "weft/train/generate.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include "src/train/config/flag_error.h"
#include "src/train/generate/prompt.h"
#include "src/train/generate/sampler.h"
#include "src/train/generate/token_printer.h"
#include "src/train/plan/agreement.h"
#include "src/train/plan/inputs.h"
#include "src/train/plan/memory_need.h"
#include "src/train/plan/run_properties.h"
#include "weft/comm/wire_compression.h"
#include "weft/core/parallel.h"
#include "weft/core/status.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/host_memory.h"
#include "weft/nn/llama.h"
#include "weft/sharding/fully_shard.h"
#include "weft/train/thread_plan.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kRemedies =
    ": use more ranks on further hosts, --reshard-after-forward true, or a smaller --max-new-tokens";

// In place of a token if rank 0 could not choose one.
constexpr int64_t kNoToken = -1;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string TextOf(const std::optional<int64_t>& value) { return value ? absl::StrCat(*value) : "not given"; }

class Generation {
 public:
  Generation(Bootstrap& bootstrap, const GenerateConfig& config, const GenerateEnvironment& environment,
             absl::Duration timeout)
      : bootstrap_(bootstrap), config_(config), environment_(environment), timeout_(timeout) {}

  absl::StatusOr<GenerateReport> Execute() {
    WEFT_RETURN_IF_ERROR(SharePromptFile());
    WEFT_RETURN_IF_ERROR(Agree(Open()));
    WEFT_RETURN_IF_ERROR(
        AgreeOnCause(bootstrap_, AgreeOnProperties(bootstrap_, properties_, timeout_), timeout_));
    WEFT_ASSIGN_OR_RETURN(const NodePlacement placement, FindPlacement(bootstrap_, timeout_));
    SetThreadCount(PlanThreads(placement).threads);
    WEFT_RETURN_IF_ERROR(Build());
    const absl::Status status = GenerateTokens();
    // Peers may wait for this rank in an operation.
    if (!status.ok() && !IsAgreedError(status)) engine_->Abort(status);
    WEFT_RETURN_IF_ERROR(AgreeOnCause(bootstrap_, status, timeout_));
    return std::move(report_);
  }

 private:
  bool first() const { return bootstrap_.rank() == 0; }
  absl::Status Agree(const absl::Status& local) { return AgreeOnStatus(bootstrap_, local, timeout_); }
  int64_t capacity() const { return static_cast<int64_t>(prompt_.size()) + config_.max_new_tokens; }

  // Standard input reaches rank 0 alone, and other hosts may not have the file.
  absl::Status SharePromptFile() {
    const std::string& path = config_.prompt_tokens_file;
    const absl::StatusOr<std::string> own = first() && !path.empty()
                                                ? ReadTokenIds(path, environment_.messages)
                                                : absl::StatusOr<std::string>("");
    WEFT_ASSIGN_OR_RETURN(const auto all, ExchangeBlobs(bootstrap_, "prompts in files", own, timeout_));
    if (path.empty()) return absl::OkStatus();
    if (all.front().empty()) {
      return Agree(
          BadFlag("prompt-tokens-file", path, "rank 0 has no such flag: give all ranks the same flags"));
    }
    config_.prompt_tokens = all.front();
    return absl::OkStatus();
  }

  absl::Status Open() {
    WEFT_ASSIGN_OR_RETURN(inputs_, OpenModelFolder(config_.hf_folder));
    WEFT_ASSIGN_OR_RETURN(prompt_, ReadPrompt(config_, inputs_.model));
    const auto prompt_tokens = static_cast<int64_t>(prompt_.size());
    inputs_.model.rope_sequence = GenerationRopeSequence(inputs_.model, prompt_tokens);
    WEFT_RETURN_IF_ERROR(CheckLength(inputs_.model, prompt_tokens, config_.max_new_tokens));
    if (!config_.lora_adapter.empty()) {
      WEFT_RETURN_IF_ERROR(OpenAdapter(config_.lora_adapter, inputs_));
      inputs_.lora->dropout = 0;  // PEFT allows any, which has no part in generation.
    }
    WEFT_ASSIGN_OR_RETURN(model_, CreateModel(inputs_));
    WEFT_RETURN_IF_ERROR(
        CheckTiedHead(*inputs_.weights, inputs_.model, bootstrap_.rank(), bootstrap_.size()));
    WEFT_ASSIGN_OR_RETURN(end_tokens_,
                          ReadEndTokens(config_.hf_folder, inputs_.hf_config, inputs_.model.vocab_size));
    WEFT_ASSIGN_OR_RETURN(properties_, PropertiesOf(inputs_));
    AddFlags();
    // Each rank finds the end of the text itself.
    properties_.push_back({"eos_token_id of generation_config.json or config.json",
                           end_tokens_.empty() ? "none" : absl::StrJoin(end_tokens_, ",")});
    return absl::OkStatus();
  }

  // The flags that decide what ranks send to each other. Rank 0 alone samples.
  void AddFlags() {
    const ParallelOptions& parallel = config_.parallel;
    const RunProperty flags[] = {
        {"--prompt, --prompt-tokens or --prompt-tokens-file", absl::StrJoin(prompt_, ",")},
        {"--max-new-tokens", absl::StrCat(config_.max_new_tokens)},
        {"--node-shared", std::string(Name(parallel.node_shared))},
        {"--share-domain", std::string(Name(parallel.share_domain))},
        {"--reshard-after-forward", parallel.reshard_after_forward ? "true" : "false"},
        {"--prefetch-depth", TextOf(parallel.prefetch_depth)},
        {"--wire-compression",
         parallel.wire_compression ? std::string(Name(*parallel.wire_compression)) : "not given"},
        {"--param-dtype", std::string(Name(parallel.param_dtype))},
    };
    properties_.insert(properties_.end(), std::begin(flags), std::end(flags));
  }

  // Bytes of one rank: its shard of the weights and adapters, gathered and cast weights, the engine, the
  // program and the key-value cache. The values between the layers of a pass and its logits are left out.
  absl::StatusOr<MemoryNeed> Need() const {
    const ParallelOptions& parallel = config_.parallel;
    const NodeMap& nodes = bootstrap_.node_map();
    WEFT_ASSIGN_OR_RETURN(const ShareDomains domains, ChooseShareDomains(nodes, parallel.share_domain));
    const ShardingPolicy policy = ResolvePrefetch(PolicyWithoutCompression(), nodes, bootstrap_.size());
    WEFT_ASSIGN_OR_RETURN(const ResidencyChoice residency,
                          ChooseResidency(policy, domains, bootstrap_.size()));
    MemoryNeed need = NeedOfForward(*model_, policy, domains, residency.residency, bootstrap_.size());
    const LlamaConfig& model = inputs_.model;
    const int64_t cached = 2 * model.layers * model.kv_heads * model.head_dim * capacity();
    need.key_value_cache = BytesOf(cached, parallel.param_dtype);
    return need;
  }

  absl::StatusOr<size_t> PlanMemory() const {
    WEFT_ASSIGN_OR_RETURN(const size_t available, AvailableHostMemory());
    const size_t ranks = bootstrap_.node_map().RanksOf(bootstrap_.node()).size();
    WEFT_ASSIGN_OR_RETURN(const MemoryNeed need, Need());
    WEFT_RETURN_IF_ERROR(
        CheckFits(need, static_cast<int>(ranks), static_cast<int64_t>(available), kRemedies));
    return SegmentBytes(bootstrap_, need);
  }

  ShardingPolicy PolicyWithoutCompression() const {
    const ParallelOptions& parallel = config_.parallel;
    ShardingPolicy policy;
    policy.node_shared = parallel.node_shared;
    policy.reshard_after_forward = policy.reshard_root_after_forward = parallel.reshard_after_forward;
    if (parallel.prefetch_depth) policy.prefetch_depth = static_cast<int>(*parallel.prefetch_depth);
    policy.param_dtype = parallel.param_dtype;
    return policy;
  }

  absl::StatusOr<ShardingPolicy> MakePolicy() {
    ShardingPolicy policy = PolicyWithoutCompression();
    if (config_.parallel.wire_compression) {
      policy.wire_compression = *config_.parallel.wire_compression;
    } else {
      WEFT_ASSIGN_OR_RETURN(const WireCompressionChoice choice, ChooseWireCompression(*engine_));
      policy.wire_compression = choice.wire_compression;
    }
    return policy;
  }

  absl::Status Build() {
    for (const std::shared_ptr<Parameter>& parameter : model_->AllParameters()) {
      parameter->requires_grad = false;  // Takes no memory for gradients.
    }
    NodeHeap::Options heap_options;
    heap_options.timeout = timeout_;
    const absl::StatusOr<size_t> segment = PlanMemory();
    WEFT_RETURN_IF_ERROR(Agree(segment.status()));
    heap_options.segment_bytes = *segment;
    WEFT_ASSIGN_OR_RETURN(heap_, NodeHeap::Create(bootstrap_, heap_options));
    EngineOptions options = environment_.engine;
    options.timeout = timeout_;
    options.share_domain = config_.parallel.share_domain;
    WEFT_ASSIGN_OR_RETURN(engine_, CommEngine::Create(bootstrap_, *heap_, options));
    WEFT_ASSIGN_OR_RETURN(const ShardingPolicy policy, MakePolicy());
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"shard", -1}}, bootstrap_.size()));
    WEFT_ASSIGN_OR_RETURN(sharded_, FullyShard(*model_, model_->units(), mesh, *engine_, policy,
                                               LoadInputs(inputs_, /*seed=*/0)));
    return absl::OkStatus();
  }

  absl::Status GenerateTokens() {
    Sampler sampler(config_.sampling);
    TokenPrinter printer(first() ? environment_.output : nullptr, config_.print_tokens);
    cache_ = std::make_shared<KvCache>(capacity());
    std::vector<int32_t> input = prompt_;
    const Clock::time_point start = Clock::now();
    double prefill_s = 0;
    while (static_cast<int64_t>(report_.tokens.size()) < config_.max_new_tokens && !report_.ended) {
      engine_->SetPhase(absl::StrCat("new token ", report_.tokens.size() + 1));
      WEFT_ASSIGN_OR_RETURN(const int32_t token, NextToken(input, sampler));
      if (report_.tokens.empty()) prefill_s = SecondsSince(start);
      report_.tokens.push_back(token);
      report_.ended = std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
      if (!report_.ended || config_.print_tokens) printer.Print(token);
      input = {token};
    }
    printer.Finish();
    report_.kv_cache_bytes = cache_->bytes();
    report_.peak_gradient_bytes = static_cast<int64_t>(sharded_->peaks().gradient_bytes);
    PrintSummary(prefill_s, SecondsSince(start) - prefill_s);
    return absl::OkStatus();
  }

  // One pass over `input`, the tokens that the cache does not have.
  absl::StatusOr<int32_t> NextToken(const std::vector<int32_t>& input, Sampler& sampler) {
    const auto count = static_cast<int64_t>(input.size());
    const Tensor ids = Tensor::Empty(DType::kI32, {1, count});
    std::copy(input.begin(), input.end(), ids.As<int32_t>());
    Invocation invocation(/*gradients=*/false);
    invocation.SetSequence(std::make_shared<SequenceParts>(SequenceParts{{{{0, cached_, count}}}, 0}));
    invocation.SetKvCache(cache_);
    WEFT_ASSIGN_OR_RETURN(const Tensors logits, model_->Forward(invocation, {ids}));
    cached_ += count;
    return ShareChoice(sampler, logits[0]);
  }

  // The token that rank 0 chooses: the logits of hosts with other processors may differ in their last bits.
  absl::StatusOr<int32_t> ShareChoice(Sampler& sampler, const Tensor& logits) {
    absl::StatusOr<int32_t> chosen = 0;
    if (first()) chosen = sampler.Next({logits.As<float>(), static_cast<size_t>(inputs_.model.vocab_size)});
    int64_t token = chosen.value_or(kNoToken);
    WEFT_RETURN_IF_ERROR(sharded_->AllReduceScalars("next_token", &token, DType::kI64, 1, ReduceOp::kSum));
    if (token == kNoToken) WEFT_RETURN_IF_ERROR(Agree(chosen.status()));
    return static_cast<int32_t>(token);
  }

  void PrintSummary(double prefill_s, double decode_s) const {
    if (!first() || environment_.messages == nullptr) return;
    const auto later = static_cast<double>(report_.tokens.size()) - 1;
    std::fprintf(
        environment_.messages, "%s\n",
        absl::StrFormat("prompt %d tokens in %.3f s; new %d tokens, %.1f a second after the first; "
                        "%s; key-value cache %.1f MiB",
                        prompt_.size(), prefill_s, report_.tokens.size(), later > 0 ? later / decode_s : 0.0,
                        report_.ended ? "ended by a token of eos_token_id" : "stopped at --max-new-tokens",
                        static_cast<double>(report_.kv_cache_bytes) / (1 << 20))
            .c_str());
  }

  Bootstrap& bootstrap_;
  GenerateConfig config_;
  const GenerateEnvironment& environment_;
  const absl::Duration timeout_;
  ModelInputs inputs_;
  std::vector<int32_t> prompt_;
  std::vector<int32_t> end_tokens_;
  std::vector<RunProperty> properties_;
  std::unique_ptr<NodeHeap> heap_;
  std::unique_ptr<CommEngine> engine_;
  std::unique_ptr<LlamaModel> model_;
  std::shared_ptr<KvCache> cache_;
  std::unique_ptr<ShardedModel> sharded_;
  int64_t cached_ = 0;  // Tokens in the cache.
  GenerateReport report_;
};

absl::Status Validate(const SamplingOptions& sampling) {
  if (!(sampling.temperature >= 0)) {
    return BadFlag("temperature", sampling.temperature, "use 0 for the most likely token, or more");
  }
  if (sampling.top_k && *sampling.top_k < 1) {
    return BadFlag("top-k", *sampling.top_k, "use at least 1, or leave it out");
  }
  if (sampling.top_p && !(*sampling.top_p > 0 && *sampling.top_p <= 1)) {
    return BadFlag("top-p", *sampling.top_p, "use a number above 0 and at most 1, or leave it out");
  }
  if (sampling.temperature == 0 && (sampling.top_k || sampling.top_p || sampling.seed)) {
    return BadFlag("temperature", 0,
                   "takes the most likely token; --top-k, --top-p and --seed need more than 0");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const GenerateConfig& config) {
  if (config.hf_folder.empty()) {
    return absl::InvalidArgumentError("no model was given: use --hf-model with a Hugging Face folder");
  }
  const int prompts = static_cast<int>(config.prompt.has_value()) +
                      static_cast<int>(config.prompt_tokens.has_value()) +
                      static_cast<int>(!config.prompt_tokens_file.empty());
  if (prompts != 1) {
    return absl::InvalidArgumentError(
        prompts == 0 ? "no prompt was given: use --prompt TEXT, or --prompt-tokens or --prompt-tokens-file "
                       "with token ids"
                     : "several of --prompt, --prompt-tokens and --prompt-tokens-file are given: keep one of "
                       "them");
  }
  if (config.prompt && config.prompt->empty()) {
    return absl::InvalidArgumentError("--prompt is empty: give at least one character");
  }
  if (config.prompt_tokens) WEFT_RETURN_IF_ERROR(ParseTokenIds(*config.prompt_tokens).status());
  if (config.max_new_tokens < 1) {
    return BadFlag("max-new-tokens", config.max_new_tokens, "use at least 1");
  }
  const std::optional<int64_t>& depth = config.parallel.prefetch_depth;
  if (depth && (*depth < 0 || *depth > ShardingPolicy::kMaxPrefetchDepth)) {
    return BadFlag("prefetch-depth", *depth, "use 0, 1 or 2");
  }
  return Validate(config.sampling);
}

absl::StatusOr<GenerateReport> Generate(Bootstrap& bootstrap, const GenerateConfig& config,
                                        const GenerateEnvironment& environment) {
  const absl::StatusOr<absl::Duration> timeout = DefaultTimeout();
  // The variable may be wrong on one host alone.
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, timeout.status(), timeout.value_or(kFallbackTimeout)));
  return Generation(bootstrap, config, environment, *timeout).Execute();
}

}  // namespace weft
