// Block for tests of ExchangeHooks: y = sum over consumers of SquareSum(q(x), k(x)), where the consumers need
// the keys of all ranks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/functional/function_ref.h>

#include "tests/context_parallel/support/split_model.h"
#include "weft/context_parallel/exchange_hooks.h"
#include "weft/context_parallel/sequence_exchange.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"

namespace weft::testing {

// out[b, t, h, d] = q[b, t, h, d] * factor * sum over s of keys[b, s, h, d]^2.
//
// Inputs: q [batch, tokens, heads, dim], "keys" [batch, keys, heads, dim]. Outputs: out, shaped as q.
class SquareSum : public Module {
 public:
  SquareSum(std::string name, float factor) : Module(std::move(name)), factor_(factor) {}

  absl::Span<const std::string_view> input_names() const override;

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  float factor_;
};

// Calls its child with the same inputs: a parent that can be checkpointed.
class Parent : public Module {
 public:
  Parent(std::string name, std::unique_ptr<SquareSum> child)
      : Module(std::move(name)), child_(AddChild(std::move(child))) {}

  SquareSum& child() const { return *child_; }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override {
    return child_->Forward(invocation, inputs);
  }
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override {
    return child_->Backward(invocation, output_gradients);
  }

 private:
  SquareSum* child_;
};

struct SlotBlockOptions {
  int consumers = 1;
  bool is_fused = false;  // The projection has one output, which holds q and k, instead of two.
  DType dtype = DType::kF32;
  int64_t dim = 6;
  int64_t heads = 3;
  int64_t head_dim = 2;
};

// Inputs: x [batch, tokens, dim]. Outputs: [batch, tokens, heads * head_dim].
class SlotBlock : public Module {
 public:
  using Options = SlotBlockOptions;

  SlotBlock(std::string name, const SlotBlockOptions& options);

  const SlotBlockOptions& options() const { return options_; }
  Linear& projection() const { return *projection_; }
  Sequential& layer() const { return *layer_; }  // The parent of the projection.
  const std::vector<SquareSum*>& consumers() const { return consumers_; }
  const std::vector<Parent*>& parents() const { return parents_; }  // Those of the consumers, one each.
  // The slot of the keys, with the projection as its source, without an exchange.
  ExchangeHooks::Slot KeySlot() const;
  // Called before each consumer's forward with its number and inputs.
  using Before = std::function<absl::Status(Invocation&, size_t consumer, Tensors& inputs)>;
  void SetBefore(Before before) { before_ = std::move(before); }
  // Leaves out the backward of a consumer; its gradients count as zeros.
  void LeaveOutBackward(size_t consumer) { left_out_ = consumer; }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  // q and k as windows of the projection's outputs or of their gradients.
  Tensors HeadsOf(const Tensors& projected) const;

  SlotBlockOptions options_;
  Sequential* layer_;
  Linear* projection_;
  std::vector<SquareSum*> consumers_;
  std::vector<Parent*> parents_;
  Before before_;
  std::optional<size_t> left_out_;
};

// One rank of a block whose keys are gathered over all ranks of the bootstrap.
class SlotModel {
 public:
  // `has_source`: the projection launches the exchange, and allocates its outputs in node memory.
  static absl::StatusOr<std::unique_ptr<SlotModel>> Make(Bootstrap& bootstrap,
                                                         const SlotBlockOptions& options, bool has_source);
  // Without a slot.
  static absl::StatusOr<std::unique_ptr<SlotModel>> Make(Bootstrap& bootstrap,
                                                         const SlotBlockOptions& options);
  // Adds the slot of all consumers. Without an exchange it gathers along the sequence.
  absl::Status AddKeySlot(ExchangeHooks::Slot slot);

  BlockModel<SlotBlock>& model() { return *model_; }
  SlotBlock& block() { return model_->block(); }
  ExchangeHooks& hooks() { return *hooks_; }
  void RemoveHooks() { hooks_.reset(); }
  SequenceExchange& exchange() { return *exchange_; }
  EngineFixture& fixture() { return fixture_; }

  // One pass over this rank's part of whole tensors.
  absl::StatusOr<PassResult> Pass(const SequenceLayout& layout, const Tensor& x, const Tensor& dy,
                                  int calls = 1);

 private:
  explicit SlotModel(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}

  Bootstrap& bootstrap_;
  EngineFixture fixture_;
  std::unique_ptr<SequenceExchange> exchange_;
  std::unique_ptr<BlockModel<SlotBlock>> model_;
  std::unique_ptr<ExchangeHooks> hooks_;
};

// Input and output gradient of most tests.
struct SlotPair {
  Tensor x = SomeTensor(2, kTokens, 6, 1);
  Tensor dy = SomeTensor(2, kTokens, 6, 2);
};

// A head-tail layout of an odd number of tokens, kTokens, over `ranks`.
SequenceLayout SlotLayout(int ranks);

// One pass of a SlotPair on every rank, after `prepare`.
// Collective: all ranks of `bootstrap`.
absl::StatusOr<PassResult> SlotPassWith(
    Bootstrap& bootstrap, const SlotBlockOptions& options, bool has_source,
    absl::FunctionRef<void(SlotModel&)> prepare = [](SlotModel&) {});

// Compares a pass of all ranks with that of one rank, for the layout of SlotLayout.
absl::Status CheckSlotAgainstOneRank(Bootstrap& bootstrap, const SlotBlockOptions& options, bool has_source,
                                     int calls = 1);

}  // namespace weft::testing
