// Context parallelism of a model: its attentions compute over sequences that are split over a group of ranks.
// Everything else in the model works on its own tokens and needs to know nothing of it.
//
// Before an attention q, k and v are exchanged, and after it its output, as the scheme wants. Modules that
// are named as the *sources* of q, k and v launch an exchange when their output is there, so that it travels
// while the next one computes; attention waits for it. In backward attention launches the way back of dq, dk
// and dv, which is waited for, and added, before the backward of the source. An input without a source is
// exchanged by attention itself. Neither changes a bit of the result.
//
// Every pass needs to be told how its sequence is split:
// Invocation::SetSequence(SequenceLayout::Parts(rank)). Results of sources are made in node memory, where
// peers read them in place.
//
// Thread safety: none; one thread drives a model.
// Collective: Create, in the same order on all ranks of the engine; every pass, by all ranks of the group.
// Lifetime: engine and model must outlive it, it the invocations of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/attention_parallel.h"
#include "weft/memory/buffer_pool.h"
#include "weft/mesh/device_mesh.h"
#include "weft/nn/attention.h"
#include "weft/nn/llama.h"

namespace weft {

// Which output of which module an input of attention is: of the last module that writes it. (A module that
// asks before it overwrites one, such as Rope, fails instead.)
struct AttentionSource {
  struct Features {
    int64_t first;
    int64_t count;
  };

  Module* module = nullptr;  // Null: not known.
  // Not given: the only output. If the module has more than one, attention launches this input itself.
  std::optional<int> output;
  // Of an output [batch, tokens, features] that holds more than this input, such as a fused projection's.
  std::optional<Features> features;
};

// What lies before and after an attention. Every member but the heads may be left out.
struct AttentionNeighbours {
  int64_t heads = 0;  // Of q, and of k and v, on every rank.
  int64_t kv_heads = 0;
  AttentionSource query;
  AttentionSource key;
  AttentionSource value;
  Module* consumer = nullptr;  // Takes the output: the gradient of its input is made in node memory.
};

class ContextParallel {
 public:
  // The ranks that share a sequence differ in `axes` of the mesh, one or two. Two are flattened, but that a
  // hybrid scheme takes the inner one for its Ulysses groups. `root` is the model: when one of its passes
  // fails, peers learn of it at once. Errors: kInvalidArgument (a scheme that does not fit the group: says
  // which would; an inner axis that is not the Ulysses degree), those of DeviceMesh::Group and
  // CommEngine::AddLane.
  static absl::StatusOr<std::unique_ptr<ContextParallel>> Create(CommEngine& engine, Module& root,
                                                                 const DeviceMesh& mesh,
                                                                 absl::Span<const std::string_view> axes,
                                                                 const ContextScheme& scheme);
  // Attentions compute on their own tokens again, and nothing is hooked any more.
  ~ContextParallel();
  ContextParallel(const ContextParallel&) = delete;
  ContextParallel& operator=(const ContextParallel&) = delete;

  // Splits one attention. Errors: kInvalidArgument (names the attention: it is split already; heads that are
  // not said though a source is).
  absl::Status Parallelize(Attention& attention, const AttentionNeighbours& neighbours = {});

  const ProcessGroup& group() const;
  const ContextScheme& scheme() const;

  // How exchanges of q, k and v were begun since the start (monotonic).
  struct Counters {
    int64_t by_sources = 0;
    int64_t in_place = 0;
  };
  const Counters& counters() const;
  // Node memory of what is exchanged, and of sources' results: now, and the most since ResetPeak.
  size_t buffer_bytes() const;
  size_t peak_buffer_bytes() const;
  void ResetPeak();

 private:
  class Impl;
  explicit ContextParallel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Splits every attention of a decoder, with the projections and rotary embeddings before them.
absl::Status ParallelizeLlama(ContextParallel& context, LlamaModel& model);

}  // namespace weft
