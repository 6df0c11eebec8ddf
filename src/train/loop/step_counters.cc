#include "src/train/loop/step_counters.h"

namespace weft {

void AddCounters(const CounterSnapshot& before, const CounterSnapshot& after, StepMetrics& metrics) {
  const EngineCounters& from = before.engine;
  const EngineCounters& to = after.engine;
  metrics.bytes.all_gather = to.all_gather_bytes - from.all_gather_bytes;
  metrics.bytes.reduce_scatter = to.reduce_scatter_bytes - from.reduce_scatter_bytes;
  metrics.bytes.all_reduce = to.all_reduce_bytes - from.all_reduce_bytes;
  metrics.bytes.context = to.context_bytes - from.context_bytes;
  metrics.bytes.control = to.control_bytes - from.control_bytes;
  metrics.bytes.optimizer = to.optimizer_bytes - from.optimizer_bytes;
  metrics.wire_bytes = to.wire_bytes - from.wire_bytes;
  metrics.wire_saved_bytes = to.wire_saved_bytes - from.wire_saved_bytes;
  metrics.cross_domain_bytes = to.cross_domain_bytes - from.cross_domain_bytes;
  metrics.copied_bytes =
      to.copied_bytes - from.copied_bytes + after.sharding.copied_bytes - before.sharding.copied_bytes;
  metrics.allocated_bytes = after.allocated_bytes - before.allocated_bytes;
  metrics.exposed_comm_ms = static_cast<double>(to.wait_ns - from.wait_ns) / 1e6;
}

void AddPeaks(ShardedModel& model, const ContextParallel* sequences, const CommEngine& engine,
              StepMetrics& metrics) {
  const MemoryPeaks peaks = model.peaks();
  metrics.peak_buffer_bytes = static_cast<int64_t>(peaks.image_bytes + peaks.gradient_bytes);
  metrics.peak_bytes.images = static_cast<int64_t>(peaks.image_bytes);
  metrics.peak_bytes.gradients = static_cast<int64_t>(peaks.gradient_bytes);
  metrics.peak_bytes.shards = static_cast<int64_t>(peaks.shard_bytes);
  metrics.peak_bytes.context =
      sequences == nullptr ? 0 : static_cast<int64_t>(sequences->peak_buffer_bytes());
  metrics.peak_bytes.scratch = static_cast<int64_t>(engine.scratch_peak_bytes());
}

}  // namespace weft
