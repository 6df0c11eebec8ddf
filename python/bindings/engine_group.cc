#include "python/bindings/engine_group.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "python/bindings/engine_operation.h"
#include "weft/comm/types.h"
#include "weft/core/dtype.h"
#include "weft/core/status.h"
#include "weft/core/tensor_view.h"

namespace weft::python {
namespace {

int64_t Total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

TensorView ToView(const Part& part, DType dtype) {
  TensorView view;
  view.data = part.data;
  view.dtype = dtype;
  view.shape.assign(part.sizes.begin(), part.sizes.end());
  view.strides.assign(part.strides.begin(), part.strides.end());
  if (part.data == nullptr) view.shape = view.strides = {0};
  return view;
}

std::vector<TensorView> ToViews(const std::vector<Part>& parts, DType dtype) {
  std::vector<TensorView> views;
  for (const Part& part : parts) views.push_back(ToView(part, dtype));
  return views;
}

// Gathers are waited for soon, reductions later.
Priority PriorityOf(Stream stream) {
  return stream == Stream::kReduceScatter || stream == Stream::kAllReduce ? Priority::kReduce
                                                                          : Priority::kPrefetch;
}

OpOptions OptionsOf(const GroupCollectives::Call& call,
                    WireCompression wire_compression = WireCompression::kNone) {
  OpOptions options;
  options.priority = PriorityOf(call.stream);
  options.label = call.label;
  options.wire_compression = wire_compression;
  options.elements = call.elements;
  return options;
}

bool SpansNodes(const Bootstrap& bootstrap, const std::vector<int>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return !bootstrap.node_map().SameNode(rank, ranks.front()); });
}

}  // namespace

absl::StatusOr<std::shared_ptr<EngineGroup>> EngineGroup::Create(std::shared_ptr<Session> session,
                                                                 const std::string& name,
                                                                 const std::vector<int>& ranks,
                                                                 absl::Duration timeout) {
  WEFT_ASSIGN_OR_RETURN(auto lanes, session->MakeLanes(name, ranks, timeout));
  return std::shared_ptr<EngineGroup>(new EngineGroup(std::move(session), std::move(lanes)));
}

EngineGroup::EngineGroup(std::shared_ptr<Session> session, std::shared_ptr<const Session::GroupLanes> lanes)
    : session_(std::move(session)),
      lanes_(std::move(lanes)),
      spans_nodes_(SpansNodes(session_->bootstrap(), lanes_->group.ranks)) {}

// The engine stages buffers outside of node memory. On one node, no peer accesses them after *ready*; sends
// to other nodes may still read them.
bool EngineGroup::NeedsRelease(std::initializer_list<const void*> buffers) const {
  return spans_nodes_ || std::any_of(buffers.begin(), buffers.end(), [&](const void* buffer) {
           return buffer != nullptr && session_->heap().AddressOf(buffer).has_value();
         });
}

bool EngineGroup::NeedsRelease(const std::vector<Part>& parts) const {
  return spans_nodes_ ||
         std::any_of(parts.begin(), parts.end(), [&](const Part& part) { return NeedsRelease({part.data}); });
}

GroupCollectives::OperationPtr EngineGroup::AllGather(Call call, const void* input, void* output, DType type,
                                                      const std::vector<int64_t>& counts) {
  return EngineOperation::Submit(
      session_, std::move(call.memory), NeedsRelease({input, output}), [&](CommEngine& engine) {
        return engine.AllGather(Lane(call.stream), input, output, type, Total(counts), counts,
                                OptionsOf(call, session_->wire_compression()));
      });
}

GroupCollectives::OperationPtr EngineGroup::ReduceScatter(Call call, const void* input, void* output,
                                                          DType type, ReduceOp reduction,
                                                          const std::vector<int64_t>& counts) {
  return EngineOperation::Submit(
      session_, std::move(call.memory), NeedsRelease({input, output}), [&](CommEngine& engine) {
        return engine.ReduceScatter(Lane(call.stream), input, output, type, Total(counts), reduction, counts,
                                    OptionsOf(call, session_->wire_compression()));
      });
}

GroupCollectives::OperationPtr EngineGroup::AllReduce(Call call, const void* input, void* output, DType type,
                                                      ReduceOp reduction, int64_t count) {
  return EngineOperation::Submit(
      session_, std::move(call.memory), NeedsRelease({input, output}), [&](CommEngine& engine) {
        return engine.AllReduce(Lane(call.stream), input, output, type, count, reduction,
                                OptionsOf(call, session_->wire_compression()));
      });
}

GroupCollectives::OperationPtr EngineGroup::Broadcast(Call call, void* buffer, DType type, int64_t count,
                                                      int root) {
  return EngineOperation::Submit(
      session_, std::move(call.memory), NeedsRelease({buffer}), [&](CommEngine& engine) {
        return engine.Broadcast(Lane(call.stream), buffer, type, count, root, OptionsOf(call));
      });
}

GroupCollectives::OperationPtr EngineGroup::AllToAll(Call call, DType type, const std::vector<Part>& sends,
                                                     const std::vector<Part>& receives) {
  const std::vector<TensorView> send_views = ToViews(sends, type);
  const std::vector<TensorView> receive_views = ToViews(receives, type);
  return EngineOperation::Submit(session_, std::move(call.memory),
                                 NeedsRelease(sends) || NeedsRelease(receives), [&](CommEngine& engine) {
                                   return engine.AllToAll(Lane(call.stream), send_views, receive_views, type,
                                                          OptionsOf(call));
                                 });
}

GroupCollectives::OperationPtr EngineGroup::Barrier(Call call) {
  return EngineOperation::Submit(
      session_, std::move(call.memory), /*needs_release=*/false,
      [&](CommEngine& engine) { return engine.Barrier(Lane(call.stream), OptionsOf(call)); });
}

GroupCollectives::OperationPtr EngineGroup::Send(Call call, const void* data, DType type, int64_t count,
                                                 int to, int tag) {
  const MessageAddress address{
      .peer = lanes_->group.ranks[static_cast<size_t>(to)], .tag = tag, .channel = lanes_->channel};
  return EngineOperation::Submit(
      session_, std::move(call.memory), /*needs_release=*/false,
      [&](CommEngine& engine) { return engine.Send(address, data, type, count, OptionsOf(call)); });
}

GroupCollectives::OperationPtr EngineGroup::Receive(Call call, void* data, DType type, int64_t count,
                                                    int from, int tag) {
  const int peer = from == kAnyRank ? kAnySource : lanes_->group.ranks[static_cast<size_t>(from)];
  const MessageAddress address{.peer = peer, .tag = tag, .channel = lanes_->channel};
  auto operation = EngineOperation::Submit(
      session_, std::move(call.memory), /*needs_release=*/false,
      [&](CommEngine& engine) { return engine.Receive(address, data, type, count, OptionsOf(call)); });
  operation->SetSenders(lanes_);
  return operation;
}

GroupCollectives::Allocation EngineGroup::Allocate(size_t bytes) {
  auto block = session_->Allocate(bytes);
  if (block.ok()) return {.block = *std::move(block)};
  return {.error = std::string(block.status().message()),
          .is_full = absl::IsResourceExhausted(block.status())};
}

}  // namespace weft::python
