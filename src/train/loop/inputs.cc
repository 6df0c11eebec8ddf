#include "src/train/loop/inputs.h"

#include <set>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"
#include "weft/core/status.h"
#include "weft/train/embedded_text.h"
#include "weft/train/hf_config.h"
#include "weft/train/model_presets.h"

namespace weft {
namespace {

absl::StatusOr<Corpus> OpenCorpus(const DataOptions& data) {
  if (data.paths.empty()) {
    return Corpus::FromText("the built-in text", EmbeddedText());
  }
  return Corpus::Open(data.paths);
}

absl::StatusOr<std::optional<Corpus>> OpenEvalCorpus(const EvalOptions& eval, const Corpus& training) {
  if (eval.paths.empty()) {
    return std::nullopt;
  }
  absl::StatusOr<Corpus> corpus = Corpus::Open(eval.paths);
  if (!corpus.ok()) {
    return Annotate(corpus.status(), "--eval-data");
  }
  const bool is_text = corpus->format() == TokenFormat::kBytes;
  if (is_text != (training.format() == TokenFormat::kBytes)) {
    return absl::DataLossError(absl::StrCat("--eval-data '", corpus->sources()[0].name, "' holds ",
                                            is_text ? "text" : "token ids", ", but the training data are ",
                                            is_text ? "token ids" : "text", ": give both in one format"));
  }
  return *std::move(corpus);
}

// True for a tensor of the folder that may be ignored: the head if it is tied to the embedding, and rotary
// frequencies, which older versions of transformers saved.
bool IsRedundant(const std::string& name, const LlamaConfig& config) {
  return (config.tie_word_embeddings && name == "lm_head.weight") ||
         absl::EndsWith(name, ".rotary_emb.inv_freq");
}

}  // namespace

absl::StatusOr<TrainInputs> OpenInputs(const TrainConfig& config) {
  WEFT_ASSIGN_OR_RETURN(Corpus corpus, OpenCorpus(config.data));
  WEFT_ASSIGN_OR_RETURN(std::optional<Corpus> eval_corpus, OpenEvalCorpus(config.eval, corpus));
  TrainInputs inputs{std::move(corpus), std::move(eval_corpus), {}, std::nullopt, ""};
  const std::string& folder = config.model.hf_folder;
  if (folder.empty()) {
    inputs.model = MakeLlamaConfig(config.model, config.data.seq_len);
    return inputs;
  }
  const std::string path = folder + "/config.json";
  WEFT_ASSIGN_OR_RETURN(inputs.hf_config, ReadWholeFile(path));
  WEFT_ASSIGN_OR_RETURN(inputs.model, ParseHfConfig(inputs.hf_config, path));
  WEFT_ASSIGN_OR_RETURN(inputs.weights, SafetensorsReader::Open(folder));
  return inputs;
}

absl::Status CheckWeights(const SafetensorsReader& weights, LlamaModel& model) {
  std::set<std::string> known;
  for (const std::shared_ptr<Parameter>& parameter : model.AllParameters()) {
    WEFT_RETURN_IF_ERROR(weights.Check(parameter->name, parameter->shape));
    known.insert(parameter->name);
  }
  for (const auto& [name, entry] : weights.entries()) {
    if (known.count(name) == 0 && !IsRedundant(name, model.config())) {
      return absl::DataLossError(absl::StrCat("'", entry.file, "' has the tensor '", name,
                                              "', which this architecture does not have: the folder holds "
                                              "another kind of model"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckData(Bootstrap& bootstrap, const Corpus& corpus, int64_t vocab_size,
                       absl::Duration timeout) {
  return AgreeOnStatus(bootstrap, corpus.CheckTokens(vocab_size, bootstrap.rank(), bootstrap.size()),
                       timeout);
}

ShardLoader LoadFromSafetensors(const SafetensorsReader& weights) {
  return [&weights](const Parameter& parameter, int64_t start, int64_t count, float* out) {
    return weights.Read(parameter.name, start, absl::MakeSpan(out, static_cast<size_t>(count)));
  };
}

}  // namespace weft
