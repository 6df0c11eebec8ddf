#include "weft/train/metrics.h"

#include <unistd.h>

#include <cerrno>

#include <absl/strings/str_cat.h>
#include <nlohmann/json.hpp>

#include "src/train/files/file_io.h"
#include "weft/core/status.h"

namespace weft {

std::string ToJson(const StepMetrics& metrics) {
  nlohmann::ordered_json json = {{"step", metrics.step},
                                 {"loss", metrics.loss},
                                 {"grad_norm", metrics.grad_norm},
                                 {"lr", metrics.lr},
                                 {"tokens", metrics.tokens},
                                 {"tokens_seen", metrics.tokens_seen},
                                 {"tokens_per_s", metrics.tokens_per_s},
                                 {"tflops", metrics.tflops},
                                 {"step_ms", metrics.step_ms},
                                 {"exposed_comm_ms", metrics.exposed_comm_ms},
                                 {"bytes",
                                  {{"all_gather", metrics.bytes.all_gather},
                                   {"reduce_scatter", metrics.bytes.reduce_scatter},
                                   {"all_reduce", metrics.bytes.all_reduce},
                                   {"context", metrics.bytes.context},
                                   {"control", metrics.bytes.control}}},
                                 {"wire_bytes", metrics.wire_bytes},
                                 {"wire_saved_bytes", metrics.wire_saved_bytes},
                                 {"copied_bytes", metrics.copied_bytes},
                                 {"peak_buffer_bytes", metrics.peak_buffer_bytes},
                                 {"peak_bytes",
                                  {{"images", metrics.peak_bytes.images},
                                   {"gradients", metrics.peak_bytes.gradients},
                                   {"shards", metrics.peak_bytes.shards},
                                   {"context", metrics.peak_bytes.context},
                                   {"scratch", metrics.peak_bytes.scratch}}},
                                 {"allocated_bytes", metrics.allocated_bytes},
                                 {"rss_bytes", metrics.rss_bytes},
                                 {"skipped_steps", metrics.skipped_steps}};
  if (metrics.eval_loss) {
    json["eval_loss"] = *metrics.eval_loss;
  }
  return json.dump();
}

absl::StatusOr<MetricsFile> MetricsFile::Create(const std::string& path) {
  std::unique_ptr<std::FILE, Closer> file(std::fopen(path.c_str(), "w"));
  if (file == nullptr) {
    return ErrnoStatus(errno, "write", path);
  }
  return MetricsFile(std::move(file), path);
}

absl::Status MetricsFile::Write(const StepMetrics& metrics) {
  const std::string line = ToJson(metrics) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0) {
    return ErrnoStatus(errno, "write", path_);
  }
  return absl::OkStatus();
}

double FlopsPerToken(const LlamaConfig& config, int64_t seq_len) {
  const int64_t query_and_output = 2 * config.dim * config.heads * config.head_dim;
  const int64_t key_and_value = 2 * config.dim * config.kv_heads * config.head_dim;
  const int64_t feed_forward = 3 * config.dim * config.ffn_dim;
  const int64_t in_products =
      config.layers * (query_and_output + key_and_value + feed_forward) + config.vocab_size * config.dim;
  const int64_t attention = config.layers * config.heads * config.head_dim * seq_len;
  return 6.0 * static_cast<double>(in_products) + 12.0 * static_cast<double>(attention);
}

int64_t ResidentBytes() {
  // /proc/self/statm has sizes in pages; the second one is the resident size.
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> statm(std::fopen("/proc/self/statm", "r"),
                                                              std::fclose);
  long long total = 0;
  long long resident = 0;
  if (statm == nullptr || std::fscanf(statm.get(), "%lld %lld", &total, &resident) != 2) {
    return 0;
  }
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace weft
