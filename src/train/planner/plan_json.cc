#include "src/train/planner/plan_json.h"

#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/train/files/json.h"
#include "src/train/files/json_text.h"
#include "weft/core/status.h"
#include "weft/nn/llama_config.h"

namespace weft {
namespace {

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

// Reader of a file of costs. Keeps the first error, which says what is wrong.
class CostsReader {
 public:
  explicit CostsReader(const Json& file) {
    if (!file.is_object()) {
      Fail("not a JSON object");
    } else if (file.value("format", Json()) != kFormat) {
      Fail("another version");
    }
    const Json& rates = Member(file, "rates");
    for (const RateField& entry : kRates) {
      costs_.rates.*entry.field = Number(rates, entry.name, entry.least, entry.most);
    }
    const Json& models = Member(file, "models");
    if (!models.is_array()) Fail("models is not a list");
    for (const Json& model : models) {
      if (fault_.empty()) costs_.models.push_back(ModelOf(model));
    }
  }

  // Empty without an error.
  const std::string& fault() const { return fault_; }
  MachineCosts Take() { return std::move(costs_); }

 private:
  void Fail(const absl::AlphaNum& fault) {
    if (fault_.empty()) fault_ = absl::StrCat(fault);
  }

  const Json& Member(const Json& object, const char* key) {
    static const Json kNone;
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (found != object.end()) return *found;
    Fail(absl::StrCat(key, " is missing"));
    return kNone;
  }
  double Number(const Json& object, const char* key, double least, double most) {
    const Json& value = Member(object, key);
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!(number >= least && number <= most)) {
      Fail(absl::StrCat(key, " is out of range: it must be a number from ", least, " to ", most));
    }
    return number;
  }
  int64_t Whole(const Json& object, const char* key, int64_t least, int64_t most) {
    const Json& value = Member(object, key);
    if (value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(most)) {
      const auto number = value.get<int64_t>();
      if (number >= least) return number;
    }
    Fail(absl::StrCat(key, " is out of range: it must be a whole number from ", least, " to ", most));
    return least;
  }

  MeasuredModel ModelOf(const Json& json) {
    MeasuredModel model;
    for (const ShapeField& entry : kShape) {
      model.shape.*entry.field = Whole(json, entry.name, entry.least, entry.most);
    }
    if (model.shape.sequences > LlamaLimits::kPositions / model.shape.seq_len) {
      Fail("sequences times seq_len is out of range");
    }
    const Json& qk_norm = Member(json, "qk_norm");
    if (!qk_norm.is_boolean()) Fail("qk_norm is not true or false");
    model.shape.qk_norm = qk_norm == true;
    const Json& dtype = Member(json, "dtype");
    const absl::StatusOr<DType> known = ParseDType(dtype.is_string() ? dtype.get<std::string>() : "");
    if (!known.ok()) Fail("dtype is not known");
    model.shape.dtype = known.value_or(DType::kF32);
    model.shape.threads = static_cast<int>(Whole(json, "threads", 1, kMaxThreads));
    for (const ModelPart part : kModelParts) {
      const Json& times = Member(json, std::string(weft::Name(part)).c_str());
      model.times[static_cast<size_t>(part)] = {Number(times, "forward_ns", 0, kMaxPartNs),
                                                Number(times, "backward_ns", 0, kMaxPartNs)};
    }
    return model;
  }

  std::string fault_;
  MachineCosts costs_;
};

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
  CostsReader reader(ParseJson(text));
  if (!reader.fault().empty()) return bad(reader.fault());
  MachineCosts costs = reader.Take();
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
