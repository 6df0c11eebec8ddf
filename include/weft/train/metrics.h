// What a step reports: one JSON object a line for programs, one line of text for people.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/nn/llama_config.h"

namespace weft {

// Bytes, times and memory are rank 0's; loss, norm and tokens are the whole run's.
struct StepMetrics {
  int64_t step = 0;      // From 1.
  double loss = 0;       // Mean over all targets of the step, in nats, before the update.
  double grad_norm = 0;  // Before clipping.
  double lr = 0;
  int64_t tokens = 0;
  int64_t tokens_seen = 0;
  double tokens_per_s = 0;
  double tflops = 0;  // Of the model's own arithmetic, over all ranks; see FlopsPerToken.
  double step_ms = 0;
  double exposed_comm_ms = 0;
  struct {
    int64_t all_gather = 0;
    int64_t reduce_scatter = 0;
    int64_t all_reduce = 0;
    int64_t context = 0;
    int64_t control = 0;  // The gradient norm, and what ranks tell each other.
  } bytes;
  int64_t wire_bytes = 0;
  int64_t wire_saved_bytes = 0;
  int64_t copied_bytes = 0;
  int64_t peak_buffer_bytes = 0;  // Images and gradients.
  // Of each pool: within the step, but for the engine's scratch, whose peak is of the run so far.
  struct {
    int64_t images = 0;
    int64_t gradients = 0;
    int64_t shards = 0;
    int64_t context = 0;  // What attention exchanges where sequences are split.
    int64_t scratch = 0;
  } peak_bytes;
  // What tensors took from the system and buffer pools from the node heap: 0 once a run has met its sizes.
  int64_t allocated_bytes = 0;
  int64_t rss_bytes = 0;
  std::optional<double> eval_loss;  // After the update, where the step was followed by an evaluation.
};

// The fields by these names, in this order, without a line's end. Numbers that are not finite become null.
std::string ToJson(const StepMetrics& metrics);

// The file of `--metrics`. Every line is handed to the system whole, so that an interrupted run leaves whole
// lines.
class MetricsFile {
 public:
  // Empties the file, or creates it. Errors: kNotFound, kPermissionDenied, ….
  static absl::StatusOr<MetricsFile> Create(const std::string& path);

  absl::Status Write(const StepMetrics& metrics);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  MetricsFile(std::unique_ptr<std::FILE, Closer> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}
  std::unique_ptr<std::FILE, Closer> file_;
  std::string path_;
};

// Floating-point operations that a model's training needs for one token, forward and backward, whoever runs
// it and however: 6 N + 12 L H Q S with N parameters that take part in products (the embedding table is only
// looked up), L layers, H heads of Q elements and S tokens a sequence. Causal masks are not deducted, and
// nothing computed twice counts twice. Source: Chowdhery et al., "PaLM" (2022), appendix B.
double FlopsPerToken(const LlamaConfig& config, int64_t seq_len);

// Resident memory of this process now, in bytes; 0 where the system does not say.
int64_t ResidentBytes();

}  // namespace weft
