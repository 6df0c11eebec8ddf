#include "src/train/planner/plan_json.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "src/train/files/json.h"
#include "src/train/files/json_text.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr const char* kFormat = "weft plan costs 2";
constexpr JsonLimits kLimits = {.levels = 8, .values = 100'000, .token_bytes = 1'000};

// Limits of rates, and of the times of a part of a model.
constexpr double kLeastRate = 1e-6;
constexpr double kMaxRate = 1e18;
constexpr double kMaxTimeNs = 1e15;

struct RateField {
  const char* name;
  double CoreRates::*field;
};
constexpr RateField kRates[] = {
    {"flops_f32", &CoreRates::flops_f32}, {"flops_bf16", &CoreRates::flops_bf16},
    {"copy_gb_s", &CoreRates::copy_gb_s}, {"cast_gb_s", &CoreRates::cast_gb_s},
    {"wire_gb_s", &CoreRates::wire_gb_s}, {"adamw_ns", &CoreRates::adamw_ns},
    {"norm_ns", &CoreRates::norm_ns},
};

struct ShapeField {
  const char* name;
  int64_t PartShape::*field;
};
constexpr ShapeField kShape[] = {
    {"dim", &PartShape::dim},
    {"heads", &PartShape::heads},
    {"kv_heads", &PartShape::kv_heads},
    {"head_dim", &PartShape::head_dim},
    {"ffn_dim", &PartShape::ffn_dim},
    {"vocab_size", &PartShape::vocab_size},
    {"selected_keys", &PartShape::selected_keys},
    {"window", &PartShape::window},
    {"adapter_elements", &PartShape::adapter_elements},
    {"sequences", &PartShape::sequences},
    {"seq_len", &PartShape::seq_len},
};

Json ToJson(const MeasuredModel& model) {
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

MeasuredModel ModelOf(const Json& json) {
  MeasuredModel model;
  for (const ShapeField& entry : kShape) model.shape.*entry.field = json.at(entry.name);
  model.shape.qk_norm = json.at("qk_norm");
  model.shape.dtype = ParseDType(json.at("dtype").get<std::string>()).value_or(DType::kF32);
  model.shape.threads = json.at("threads");
  for (const ModelPart part : kModelParts) {
    const Json& times = json.at(std::string(weft::Name(part)));
    model.times[static_cast<size_t>(part)] = {times.at("forward_ns"), times.at("backward_ns")};
  }
  return model;
}

// False for values that no machine has, whose times a forecast could not count.
bool IsInRange(const MachineCosts& costs) {
  for (const RateField& entry : kRates) {
    const double rate = costs.rates.*entry.field;
    if (!(rate >= kLeastRate && rate <= kMaxRate)) return false;
  }
  for (const MeasuredModel& model : costs.models) {
    for (const ShapeField& entry : kShape) {
      const bool may_be_zero = entry.field == &PartShape::selected_keys ||
                               entry.field == &PartShape::window ||
                               entry.field == &PartShape::adapter_elements;
      if (model.shape.*entry.field < (may_be_zero ? 0 : 1)) return false;
    }
    if (model.shape.threads < 1) return false;
    for (const PartTimes& times : model.times) {
      for (const double ns : {times.forward_ns, times.backward_ns}) {
        if (!(ns >= 0 && ns <= kMaxTimeNs)) return false;
      }
    }
  }
  return true;
}

Json ToJson(const Candidate& candidate) {
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
  for (const MeasuredModel& model : costs.models) json["models"].push_back(ToJson(model));
  return JsonText(json, 1) + "\n";
}

absl::StatusOr<MachineCosts> ParseCosts(std::string_view text, const std::string& path) {
  const auto bad = [&](std::string_view why) {
    return absl::DataLossError(absl::StrCat("'", path, "' is no file of costs (",
                                            absl::string_view(why.data(), why.size()),
                                            "): remove it, and run weft plan --measure"));
  };
  if (const absl::Status status = CheckJsonText(text, kLimits); !status.ok()) {
    return bad(std::string(status.message()));
  }
  MachineCosts costs;
  try {
    const Json json = ParseJson(text);
    if (!json.is_object()) return bad("not a JSON object");
    if (json.at("format") != kFormat) return bad("another version");
    for (const RateField& entry : kRates) costs.rates.*entry.field = json.at("rates").at(entry.name);
    for (const Json& model : json.at("models")) costs.models.push_back(ModelOf(model));
  } catch (const Json::exception& error) {
    return bad(error.what());
  }
  if (!IsInRange(costs)) return bad("a rate, a time or a size is out of range");
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
  for (const Candidate& candidate : report.candidates) json["candidates"].push_back(ToJson(candidate));
  return JsonText(json, 2) + "\n";
}

}  // namespace weft
