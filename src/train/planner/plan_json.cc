#include "src/train/planner/plan_json.h"

#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/train/files/json.h"
#include "src/train/files/json_fields.h"
#include "src/train/files/json_text.h"
#include "weft/core/status.h"
#include "weft/nn/llama_config.h"

namespace weft {
namespace {

constexpr const char* kRemedy = "remove this file of costs, and run weft plan --measure";
constexpr const char* kFormat = "weft plan costs 2";
constexpr JsonLimits kLimits = {.levels = 8, .values = 100'000, .token_bytes = 1'000};
constexpr int64_t kMaxSequences = int64_t{1} << 31;
constexpr int64_t kMaxThreads = 1 << 20;
constexpr double kMaxPartNs = 1e15;

struct RateField {
  const char* name;
  double CoreRates::*field;
  double least, most;  // Values of all machines are between these.
};
constexpr RateField kRates[] = {
    {"flops_f32", &CoreRates::flops_f32, 1e6, 1e18}, {"flops_bf16", &CoreRates::flops_bf16, 1e6, 1e18},
    {"copy_gb_s", &CoreRates::copy_gb_s, 1e-3, 1e6}, {"cast_gb_s", &CoreRates::cast_gb_s, 1e-3, 1e6},
    {"wire_gb_s", &CoreRates::wire_gb_s, 1e-3, 1e6}, {"adamw_ns", &CoreRates::adamw_ns, 1e-6, 1e6},
    {"norm_ns", &CoreRates::norm_ns, 1e-6, 1e6},
};

struct ShapeField {
  const char* name;
  int64_t PartShape::*field;
  int64_t least, most;
};
constexpr ShapeField kShape[] = {
    {"dim", &PartShape::dim, 1, LlamaLimits::kWidth},
    {"heads", &PartShape::heads, 1, LlamaLimits::kWidth},
    {"kv_heads", &PartShape::kv_heads, 1, LlamaLimits::kWidth},
    {"head_dim", &PartShape::head_dim, 1, LlamaLimits::kWidth},
    {"ffn_dim", &PartShape::ffn_dim, 1, LlamaLimits::kFfnWidth},
    {"vocab_size", &PartShape::vocab_size, 1, LlamaLimits::kVocabulary},
    {"selected_keys", &PartShape::selected_keys, 0, LlamaLimits::kPositions},
    {"window", &PartShape::window, 0, LlamaLimits::kPositions},
    {"adapter_elements", &PartShape::adapter_elements, 0, LlamaLimits::kParameters},
    {"sequences", &PartShape::sequences, 1, kMaxSequences},
    {"seq_len", &PartShape::seq_len, 1, LlamaLimits::kPositions},
};

Json ModelJson(const MeasuredModel& model) {
  Json json;
  for (const ShapeField& entry : kShape) json[entry.name] = model.shape.*entry.field;
  json["qk_norm"] = model.shape.qk_norm;
  json["dtype"] = std::string(weft::Name(model.shape.dtype));
  json["threads"] = model.shape.threads;
  for (const ModelPart part : kModelParts) {
    const PartTimes& times = model.times[static_cast<size_t>(part)];
    json[std::string(weft::Name(part))] = {{"forward_ns", times.forward_ns},
                                           {"backward_ns", times.backward_ns}};
  }
  return json;
}

MeasuredModel ReadModel(JsonFields json) {
  MeasuredModel model;
  for (const ShapeField& entry : kShape) {
    model.shape.*entry.field = json.Whole(entry.name, entry.least, entry.most);
  }
  if (model.shape.sequences > LlamaLimits::kPositions / model.shape.seq_len) {
    json.FailValue("sequences", absl::StrCat("with seq_len ", model.shape.seq_len, " a batch has at most ",
                                             LlamaLimits::kPositions, " tokens"));
  }
  model.shape.qk_norm = json.Bool("qk_norm");
  model.shape.dtype = json.OneOf("dtype", {DType::kF32, DType::kBF16, DType::kF16});
  model.shape.threads = static_cast<int>(json.Whole("threads", 1, kMaxThreads));
  for (const ModelPart part : kModelParts) {
    JsonFields times = json.Inner(std::string(weft::Name(part)).c_str());
    model.times[static_cast<size_t>(part)] = {times.Number("forward_ns", 0, kMaxPartNs),
                                              times.Number("backward_ns", 0, kMaxPartNs)};
  }
  return model;
}

Json CandidateJson(const Candidate& candidate) {
  Json json = {{"replicate", candidate.mesh.replicate},
               {"shard", candidate.mesh.shard},
               {"context", candidate.mesh.context},
               {"fits", candidate.fits()}};
  if (!candidate.error.empty()) json["error"] = candidate.error;
  if (!candidate.step) return json;
  const ReplayResult& step = *candidate.step;
  const MemoryForecast& memory = candidate.memory;
  json["step_ms"] = step.step_ms;
  json["tokens_per_s"] = candidate.tokens_per_s();
  json["compute_ms"] = step.compute_ms;
  json["exposed_comm_ms"] = step.exposed_ms;
  json["bytes"] = {{"all_gather", step.all_gather_bytes},
                   {"reduce_scatter", step.reduce_scatter_bytes},
                   {"all_reduce", step.all_reduce_bytes},
                   {"context", step.context_bytes},
                   {"optimizer", step.optimizer_bytes}};
  json["host_wire_bytes"] = step.wire_bytes;
  json["peak_bytes"] = {{"images", step.peaks.image_bytes}, {"gradients", step.peaks.gradient_bytes},
                        {"shards", step.peaks.shard_bytes}, {"context", step.context_peak_bytes},
                        {"scratch", step.scratch_bytes},    {"exact", step.divisor == 1}};
  json["memory"] = {{"weights", memory.weights},
                    {"gradients", memory.gradients},
                    {"moments", memory.moments},
                    {"images", memory.images},
                    {"full_gradients", memory.full_gradients},
                    {"activations", memory.activations},
                    {"context", memory.context},
                    {"scratch", memory.scratch},
                    {"program", memory.program},
                    {"total", memory.total()},
                    {"at_most", memory.at_most},
                    {"resident", memory.resident()}};
  return json;
}

}  // namespace

std::string FormatCosts(const MachineCosts& costs) {
  Json json = {{"format", kFormat}, {"rates", Json::object()}, {"models", Json::array()}};
  for (const RateField& entry : kRates) json["rates"][entry.name] = costs.rates.*entry.field;
  for (const MeasuredModel& model : costs.models) json["models"].push_back(ModelJson(model));
  return JsonText(json, 1) + "\n";
}

absl::StatusOr<MachineCosts> ParseCosts(std::string_view text, const std::string& path) {
  const std::string place = absl::StrCat("'", path, "'");
  if (const absl::Status status = CheckJsonText(text, kLimits); !status.ok()) {
    return absl::DataLossError(absl::StrCat(place, " ", status.message(), ": ", kRemedy));
  }
  const Json json = ParseJson(text);
  JsonFields fields(json, place, kRemedy);
  if (fields.Text("format") != kFormat)
    fields.FailValue("format", absl::StrCat("this version reads '", kFormat, "'"));
  MachineCosts costs;
  JsonFields rates = fields.Inner("rates");
  for (const RateField& entry : kRates) {
    costs.rates.*entry.field = rates.Number(entry.name, entry.least, entry.most);
  }
  for (const Json& model : fields.List("models")) {
    WEFT_RETURN_IF_ERROR(fields.status());
    costs.models.push_back(ReadModel(fields.Inner(model)));
  }
  WEFT_RETURN_IF_ERROR(fields.status());
  costs.source = absl::StrCat("measured on this machine (", path, ")");
  return costs;
}

std::string FormatJson(const PlanReport& report) {
  Json json = {{"model", report.model},
               {"batch", report.batch},
               {"machine", report.machine},
               {"costs", report.costs},
               {"assumptions", report.assumptions},
               {"candidates", Json::array()},
               {"command", report.command}};
  for (const Candidate& candidate : report.candidates) json["candidates"].push_back(CandidateJson(candidate));
  return JsonText(json, 2) + "\n";
}

}  // namespace weft
