// Metrics of a training step, and the file of --metrics, which has one JSON object per line.
//
// Thread safety: values and free functions; one thread writes a MetricsFile.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace weft {

// Metrics of the indexers of sparse attention, over all ranks.
struct IndexerMetrics {
  double loss = 0;       // Mean over the step's tokens and the layers, in nats, before the update.
  double grad_norm = 0;  // Of the indexers' parameters, before clipping.
  // Mean share of dense attention's weights that the selected keys have, over a sample of the queries and all
  // layers; NaN if it was not measured.
  double mass_selected = 0;
};

// Figures of a step in a run with a loss scale.
struct LossScaleMetrics {
  double scale = 1;      // Of the step.
  bool skipped = false;  // The step did not update the weights.
};

// Loss, norm and tokens are those of all ranks. Bytes, times and memory are those of one rank; outputs show
// rank 0's. docs/training.md describes the fields.
struct StepMetrics {
  int64_t step = 0;  // From 1.
  // Mean over the targets of the step that have a loss, in nats, before the update; 0 if there are none.
  double loss = 0;
  double grad_norm = 0;  // Before clipping, without the loss scale. Of all parameters but those of indexers.
  double lr = 0;
  int64_t tokens = 0;
  std::optional<int64_t> loss_tokens;  // Targets that have a loss. Unset without --loss-mask: all of them.
  int64_t tokens_seen = 0;
  double tokens_per_s = 0;
  double tflops = 0;  // tokens_per_s x FlopsPerToken, in 1e12 per second.
  double step_ms = 0;
  double exposed_comm_ms = 0;
  struct {
    int64_t all_gather = 0;
    int64_t reduce_scatter = 0;
    int64_t all_reduce = 0;
    int64_t context = 0;
    int64_t control = 0;    // Gradient norms, losses, requests, and agreements on groups.
    int64_t optimizer = 0;  // Matrices that Muon orthogonalizes.
  } bytes;
  int64_t wire_bytes = 0;
  int64_t wire_saved_bytes = 0;
  int64_t cross_domain_bytes = 0;  // EngineCounters::cross_domain_bytes.
  int64_t copied_bytes = 0;
  int64_t peak_buffer_bytes = 0;  // Sum of the peaks of images and of gradients.
  // Peak of each pool within the step. The peak of scratch is that of the run so far.
  struct {
    int64_t images = 0;
    int64_t gradients = 0;
    int64_t shards = 0;
    int64_t context = 0;  // Buffers of attention over split sequences.
    int64_t scratch = 0;
  } peak_bytes;
  // Memory that tensors took from the system, and buffer pools from the node heap. 0 in a steady step.
  int64_t allocated_bytes = 0;
  int64_t rss_bytes = 0;
  // Steps of the run so far whose loss or gradient norm was not finite: they did not update the weights.
  int64_t skipped_steps = 0;
  // Those of them that --max-skipped-steps counts: not those in which only gradients overflowed, and after
  // which a dynamic loss scale backed off from above 1. With updates in backward, steps that are not finite.
  int64_t counted_skips = 0;
  std::optional<LossScaleMetrics> loss_scale;  // Set if compute or reductions are in f16.
  std::optional<IndexerMetrics> indexers;      // Set with sparse attention.
  std::optional<double> eval_loss;             // After the update; set if an evaluation followed the step.
  // A JSON object with the inputs of the byte formulas. MetricsFile has it in the first step of each process.
  std::optional<std::string> byte_inputs;
};

// One line of JSON without a newline; docs/training.md has its keys. They are the names of the fields, with
// two exceptions: `loss_scale` becomes loss_scale and skipped, and `indexers` becomes indexer_loss,
// indexer_grad_norm and attention_mass_selected. Fields that are not set are left out, and so is
// counted_skips. A number that is not finite becomes null.
std::string ToJson(const StepMetrics& metrics);

// The file of `--metrics`. Each line is written by one call at the end of the file, so an interrupted run
// leaves whole lines. The file is locked (`flock`), so that a second run cannot mix its lines with these.
class MetricsFile {
 public:
  // Creates the file, or opens an empty one, /dev/null or /dev/stdout. Follows no other link.
  // Errors: kInvalidArgument (the file is not empty, or another run writes to it), kNotFound,
  //   kPermissionDenied, kResourceExhausted, kUnavailable, kDataLoss (names the path).
  static absl::StatusOr<MetricsFile> Create(const std::string& path);
  // Opens the file of a run that goes on after `step`. Moves the lines of later steps, which the run will
  // repeat, to a new file ("<path>.1", or the next free number): they may be those of another run. Removes a
  // last line that is not whole. Creates the file if it does not exist. Removes nothing after an error.
  // Errors: as Create, but kDataLoss if a line is not one of weft.
  static absl::StatusOr<MetricsFile> Continue(const std::string& path, int64_t step);
  MetricsFile(MetricsFile&& other) noexcept;
  MetricsFile& operator=(MetricsFile&& other) noexcept;
  ~MetricsFile();

  // The file to which Continue has moved the lines of later steps; empty if there were none.
  const std::string& later_lines() const { return later_lines_; }
  // Errors: kResourceExhausted (a full disk), kUnavailable, kDataLoss. Names the path.
  absl::Status Write(const StepMetrics& metrics);

 private:
  // Opens the file, whatever lines it has.
  static absl::StatusOr<MetricsFile> Open(const std::string& path);
  MetricsFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
  std::string later_lines_;
};

// If the file has lines, gives it another name ("<path>.1", or the next free number), and returns that name.
// Otherwise returns an empty string. Leaves devices and links as they are. Errors: those of the system, or
// kInvalidArgument (another run writes to the file).
absl::StatusOr<std::string> KeepOldMetrics(const std::string& path);

}  // namespace weft
