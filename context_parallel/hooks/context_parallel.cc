#include "weft/context_parallel/context_parallel.h"

#include <algorithm>
#include <utility>

#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_cat.h>

#include "context_parallel/hooks/split_attention.h"
#include "weft/context_parallel/sequence_exchange.h"
#include "weft/context_parallel/sequence_gather.h"
#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

// Checks that the inner axis, if there is one, has as many ranks as the Ulysses groups of a hybrid scheme.
absl::Status CheckInnerAxis(const DeviceMesh& mesh, absl::Span<const std::string_view> axes,
                            const ContextScheme& scheme) {
  if (axes.empty() || axes.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sequence is split over one axis or two axes of the mesh, not ", axes.size()));
  }
  if (axes.size() == 1) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const int outer, mesh.AxisSize(axes[0]));
  WEFT_ASSIGN_OR_RETURN(const int inner, mesh.AxisSize(axes[1]));
  const int degree = scheme.inner_ranks(outer * inner);
  if (scheme.kind(outer * inner) != SchemeKind::kHybrid || inner == degree) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the inner context axis '", ToAbsl(axes[1]), "' has ", inner,
                                                 " ranks, but the Ulysses degree is ", degree,
                                                 ": make them equal, or give one flattened axis"));
}

AttentionNeighbors NeighborsOf(const SelfAttention& parts, const LlamaConfig& config) {
  AttentionNeighbors neighbors;
  neighbors.heads = config.heads;
  neighbors.kv_heads = config.kv_heads;
  neighbors.query = {&parts.rope(), 0, {}};
  neighbors.key = {&parts.rope(), 1, {}};
  neighbors.value = {&parts.projections(), 2, {}};
  if (parts.query_norm() != nullptr) neighbors.allocators = {parts.query_norm(), parts.key_norm()};
  neighbors.consumer = &parts.output();
  return neighbors;
}

SparseAttentionNeighbors SparseNeighborsOf(const SelfAttention& parts, const LlamaConfig& config) {
  SparseAttentionNeighbors neighbors;
  neighbors.kv_heads = config.kv_heads;
  neighbors.key = {&parts.rope(), 1, {}};
  neighbors.value = {&parts.projections(), 2, {}};
  neighbors.index_key = {&parts.indexer()->rope(), 1, {}};
  neighbors.allocators = {&parts.indexer()->key_norm()};
  if (parts.key_norm() != nullptr) neighbors.allocators.push_back(parts.key_norm());
  return neighbors;
}

// Allocates the results of a module in node memory.
struct PoolAllocator {
  BufferPool* pool;

  absl::StatusOr<Tensor> operator()(DType dtype, Shape shape) const {
    return PoolTensor(*pool, dtype, std::move(shape));
  }
};

// The pool of a PoolAllocator; null for any other allocator.
const BufferPool* PoolOf(const TensorAllocator& allocator) {
  const auto* in_pool = allocator.target<PoolAllocator>();
  return in_pool == nullptr ? nullptr : in_pool->pool;
}

}  // namespace

class ContextParallel::Impl {
 public:
  Impl(CommEngine& engine, Module& root, ProcessGroup group, const ContextScheme& scheme)
      : scheme_(scheme),
        root_(root),
        pool_(engine.heap(), "context parallelism"),
        shared_{engine, std::move(group), nullptr, {}, {}} {}

  ~Impl() {
    root_.RemoveHook(error_hook_);
    for (const auto& [attention, own] : operators_) {
      if (attention->attention_operator() == own.lock().get()) attention->SetOperator(nullptr);
    }
    for (Module* module : allocating_) {
      ResultAllocators allocators = module->result_allocators();
      for (TensorAllocator* allocator : {&allocators.outputs, &allocators.input_gradients}) {
        if (PoolOf(*allocator) == &pool_) *allocator = nullptr;
      }
      module->SetResultAllocators(std::move(allocators));
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  absl::Status Open() {
    error_hook_ =
        root_.AddErrorHook([this](Module&, const absl::Status& error) { shared_.engine.Abort(error); });
    WEFT_ASSIGN_OR_RETURN(shared_.parallel,
                          AttentionParallel::Create(scheme_, shared_.engine, pool_, shared_.group));
    return absl::OkStatus();
  }

  absl::Status Parallelize(Attention& attention, const AttentionNeighbors& neighbors) {
    WEFT_RETURN_IF_ERROR(CheckNotSplit(attention));
    if (attention.attention_operator() != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          attention.name(), " has an operator already, such as that of another context: destroy ",
          "the other ContextParallel first, or remove the operator"));
    }
    WEFT_RETURN_IF_ERROR(
        Annotate(scheme_.Validate(shared_.group.size(), attention.options().mask), attention.name()));
    std::vector<Module*> sources;
    for (const ExchangeSource* source : {&neighbors.query, &neighbors.key, &neighbors.value}) {
      if (source->module != nullptr) sources.push_back(source->module);
    }
    if (!sources.empty() &&
        (neighbors.heads < 1 || neighbors.kv_heads < 1 || neighbors.heads % neighbors.kv_heads != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat(attention.name(), ": ", neighbors.heads, " heads and ", neighbors.kv_heads,
                       " KV heads: if a source is given, set both, the first to a multiple of the second"));
    }
    const auto own = std::make_shared<SplitAttention>(attention, neighbors, shared_);
    attention.SetOperator(own);
    operators_.emplace_back(&attention, own);
    split_.push_back(&attention);
    for (Module* source : sources) Allocate(*source, &ResultAllocators::outputs);
    for (Module* module : neighbors.allocators) Allocate(*module, &ResultAllocators::outputs);
    if (neighbors.consumer != nullptr) Allocate(*neighbors.consumer, &ResultAllocators::input_gradients);
    return absl::OkStatus();
  }

  absl::Status Parallelize(SparseAttention& attention, const SparseAttentionNeighbors& neighbors) {
    WEFT_RETURN_IF_ERROR(CheckNotSplit(attention));
    if (PoolOf(attention.result_allocators().input_gradients) != nullptr) {  // Set by who has split it.
      return absl::InvalidArgumentError(absl::StrCat(
          attention.name(), " is split by another context: destroy the other ContextParallel first"));
    }
    WEFT_RETURN_IF_ERROR(
        Annotate(scheme_.ValidateSparse(shared_.group.size(), attention.options().mask), attention.name()));
    if (exchange_ == nullptr) {
      WEFT_ASSIGN_OR_RETURN(exchange_, SequenceExchange::Create(shared_.engine, pool_, shared_.group));
    }
    const struct {
      std::string_view input;
      const ExchangeSource& source;
      int64_t heads;
    } slots[] = {{"k", neighbors.key, neighbors.kv_heads},
                 {"v", neighbors.value, neighbors.kv_heads},
                 {"index_k", neighbors.index_key, 1}};
    for (const auto& [input, source, heads] : slots) {
      const std::string name = absl::StrCat(attention.name(), ".", ToAbsl(input));
      WEFT_RETURN_IF_ERROR(hooks_.AddSlot(
          {.name = name, .source = source, .heads = heads, .exchange = SequenceGather(*exchange_, name)}));
      WEFT_RETURN_IF_ERROR(hooks_.AddConsumer(name, attention, input));
      if (source.module != nullptr) Allocate(*source.module, &ResultAllocators::outputs);
    }
    for (Module* module : neighbors.allocators) Allocate(*module, &ResultAllocators::outputs);
    Allocate(attention, &ResultAllocators::input_gradients);
    split_.push_back(&attention);
    return absl::OkStatus();
  }

  const ProcessGroup& group() const { return shared_.group; }
  const ContextScheme& scheme() const { return scheme_; }
  Counters counters() const {
    const ExchangeHooks::Counters& sparse = hooks_.counters();
    return {.launched_by_sources = shared_.counters.launched_by_sources + sparse.launched_by_sources,
            .launched_by_attentions = shared_.counters.launched_by_attentions + sparse.launched_by_consumers};
  }
  void SetKernels(AttentionKernels kernels) { shared_.kernels = std::move(kernels); }
  BufferPool& pool() { return pool_; }

 private:
  absl::Status CheckNotSplit(const Module& attention) const {
    const bool is_split = std::find(split_.begin(), split_.end(), &attention) != split_.end();
    if (!is_split) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(attention.name(), " is split already: call Parallelize once for each attention"));
  }

  // Allocates some results of a module in node memory.
  void Allocate(Module& module, TensorAllocator ResultAllocators::*results) {
    ResultAllocators allocators = module.result_allocators();
    allocators.*results = PoolAllocator{&pool_};
    module.SetResultAllocators(std::move(allocators));
    allocating_.insert(&module);
  }

  const ContextScheme scheme_;
  Module& root_;
  Module::HookId error_hook_ = 0;
  BufferPool pool_;
  SplitAttention::Shared shared_;
  // Those of dense attentions. Weak, because an operator that was removed must take its hooks along.
  std::vector<std::pair<Attention*, std::weak_ptr<const AttentionOperator>>> operators_;
  std::vector<const Module*> split_;            // Dense and sparse attentions.
  std::unique_ptr<SequenceExchange> exchange_;  // Moves the keys of sparse attentions; null without any.
  ExchangeHooks hooks_;                         // Those of sparse attentions.
  absl::flat_hash_set<Module*> allocating_;     // Modules with results in the pool.
};

ContextParallel::ContextParallel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ContextParallel::~ContextParallel() = default;

absl::StatusOr<std::unique_ptr<ContextParallel>> ContextParallel::Create(
    CommEngine& engine, Module& root, const DeviceMesh& mesh, absl::Span<const std::string_view> axes,
    const ContextScheme& scheme) {
  WEFT_RETURN_IF_ERROR(CheckInnerAxis(mesh, axes, scheme));
  WEFT_ASSIGN_OR_RETURN(ProcessGroup group, mesh.Group(axes, engine.bootstrap().rank()));
  auto impl = std::make_unique<Impl>(engine, root, std::move(group), scheme);
  WEFT_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<ContextParallel>(new ContextParallel(std::move(impl)));
}

absl::Status ContextParallel::Parallelize(Attention& attention, const AttentionNeighbors& neighbors) {
  return impl_->Parallelize(attention, neighbors);
}

absl::Status ContextParallel::Parallelize(SparseAttention& attention,
                                          const SparseAttentionNeighbors& neighbors) {
  return impl_->Parallelize(attention, neighbors);
}

void ContextParallel::SetKernels(AttentionKernels kernels) { impl_->SetKernels(std::move(kernels)); }
const ProcessGroup& ContextParallel::group() const { return impl_->group(); }
const ContextScheme& ContextParallel::scheme() const { return impl_->scheme(); }
ContextParallel::Counters ContextParallel::counters() const { return impl_->counters(); }
size_t ContextParallel::buffer_bytes() const { return impl_->pool().in_use_bytes(); }
size_t ContextParallel::peak_buffer_bytes() const { return impl_->pool().peak_bytes(); }
void ContextParallel::ResetPeak() { impl_->pool().ResetPeak(); }

absl::Status ParallelizeLlama(ContextParallel& context, LlamaModel& model) {
  const LlamaConfig& config = model.config();
  for (DecoderBlock* block : model.blocks()) {
    const SelfAttention& parts = block->self_attention();
    WEFT_RETURN_IF_ERROR(
        parts.sparse_attention() == nullptr
            ? context.Parallelize(parts.attention(), NeighborsOf(parts, config))
            : context.Parallelize(*parts.sparse_attention(), SparseNeighborsOf(parts, config)));
  }
  return absl::OkStatus();
}

}  // namespace weft
