// Context parallelism of a model: its attentions compute over sequences that are split across a group of
// ranks. All other modules compute on this rank's tokens and do not change.
//
// A split attention exchanges q, k and v before it computes, and its output after, as the scheme says. The
// modules that make q, k and v may be named as their *sources*. A source's hook then launches the exchange
// when the source's output is ready, so that it overlaps the next module; the attention waits for it. In
// backward the attention launches the exchanges of dq, dk and dv; each source's backward waits for its
// gradient and adds it. The attention itself launches the exchange of an input without a source. The results
// have the same bits with and without sources.
//
// A split sparse attention takes keys, values and index keys of all ranks; its sources launch the gathers in
// the same way (see exchange_hooks.h).
//
// Every pass needs the split of its sequence: Invocation::SetSequence(SequenceLayout::Parts(rank)). The
// outputs of sources are allocated in node memory, where peers read them in place.
//
// Thread safety: none; belongs to the thread that drives the model.
// Collective: Create and the first Parallelize of a sparse attention, by all ranks of the engine in the same
//   order; every pass, by all ranks of the group.
// Lifetime: engine and model must outlive this object, which must outlive the invocations of the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/context_scheme.h"
#include "weft/context_parallel/exchange_hooks.h"
#include "weft/memory/buffer_pool.h"
#include "weft/mesh/device_mesh.h"
#include "weft/mesh/process_group.h"
#include "weft/nn/attention.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/llama.h"
#include "weft/nn/sparse/sparse_attention.h"

namespace weft {

// Modules before and after an attention. REQUIRES: both numbers of heads are set if any source is. All other
// members are optional.
struct AttentionNeighbors {
  int64_t heads = 0;     // Query heads in the whole model, not per rank.
  int64_t kv_heads = 0;  // Divides `heads`.
  ExchangeSource query;
  ExchangeSource key;
  ExchangeSource value;
  // Modules that allocate the memory of the inputs, if their sources write it in place, as Rope does. Their
  // outputs are allocated in node memory, as those of the sources.
  std::vector<Module*> allocators;
  // Module that takes the output. Its input gradient is allocated in node memory.
  Module* consumer = nullptr;
};

// Modules before a sparse attention. All are optional.
struct SparseAttentionNeighbors {
  // REQUIRES: set if the source of keys or values has outputs [batch, tokens, features].
  int64_t kv_heads = 0;
  ExchangeSource key;
  ExchangeSource value;
  ExchangeSource index_key;
  // Modules that allocate the memory of these inputs, if their sources write it in place, as Rope does. Their
  // outputs are allocated in node memory, as those of the sources.
  std::vector<Module*> allocators;
};

class ContextParallel {
 public:
  // `axes`: the one or two mesh axes along which ranks share a sequence. Two axes are flattened; for a hybrid
  // scheme the inner axis must be the Ulysses group. `root`: the model; if one of its passes fails, the
  // engine tells all peers. Errors: kInvalidArgument (the scheme does not fit the group: the message names
  // schemes that do; an inner axis that differs from the Ulysses degree), those of DeviceMesh::Group and
  // CommEngine::SharedLane.
  static absl::StatusOr<std::unique_ptr<ContextParallel>> Create(CommEngine& engine, Module& root,
                                                                 const DeviceMesh& mesh,
                                                                 absl::Span<const std::string_view> axes,
                                                                 const ContextScheme& scheme);
  // Removes all of its hooks, operators and allocators. The attentions compute on this rank's tokens alone
  // from then on.
  ~ContextParallel();
  ContextParallel(const ContextParallel&) = delete;
  ContextParallel& operator=(const ContextParallel&) = delete;

  // Splits one attention. Errors: kInvalidArgument, with the attention's name (it is split already, by this
  // object or another; the mask does not fit the scheme; a source is given but the heads are not, or kv_heads
  // does not divide heads).
  absl::Status Parallelize(Attention& attention, const AttentionNeighbors& neighbors = {});

  // Splits one sparse attention: its keys, values and index keys are gathered over all ranks, once each, and
  // their gradients are reduce-scattered. Queries, index queries and their weights stay local. Collective:
  // the first call that passes the checks of its arguments, by all ranks of the engine; it takes a shared
  // lane. Errors: kInvalidArgument, with the attention's name (it is split already, by this object or
  // another; ContextScheme::ValidateSparse), those of ExchangeHooks and CommEngine::SharedLane.
  absl::Status Parallelize(SparseAttention& attention, const SparseAttentionNeighbors& neighbors = {});

  // The kernels of dense attentions from the next pass on. REQUIRES: no pass is in flight.
  void SetKernels(AttentionKernels kernels);

  const ProcessGroup& group() const;
  const ContextScheme& scheme() const;

  // Exchanges of inputs of attentions since the start, by who launched them. Monotonic.
  struct Counters {
    int64_t launched_by_sources = 0;
    int64_t launched_by_attentions = 0;
  };
  Counters counters() const;
  // Node memory of exchanges and of sources' outputs: now, and at most since the last ResetPeak.
  size_t buffer_bytes() const;
  size_t peak_buffer_bytes() const;
  void ResetPeak();

 private:
  class Impl;
  explicit ContextParallel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Splits every attention of a decoder, dense or sparse. Sources are the rotary embedding for q and k, the
// projection for v, and the indexer's rotary embedding for its keys.
// Collective: all ranks of the engine, in the same order. Errors: those of Parallelize, after which some
// attentions may be split.
absl::Status ParallelizeLlama(ContextParallel& context, LlamaModel& model);

}  // namespace weft
