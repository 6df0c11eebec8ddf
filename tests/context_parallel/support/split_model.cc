#include "tests/context_parallel/support/split_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tests/context_parallel/support/single_schemes.h"
#include "tests/support/test_timeout.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

bool SameBytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.view().data, b.view().data, a.bytes()) == 0;
}

Tensor ConvertTo(const Tensor& tensor, DType dtype) {
  Tensor rounded = Tensor::Empty(dtype, tensor.shape());
  const absl::Status copied = StridedCopy(tensor.view(), rounded.view());
  WEFT_CHECK(copied.ok(), ToStd(copied.message()));
  return rounded;
}

// The largest absolute difference over the largest expected value.
absl::Status CheckRun(std::string_view what, const float* values, const float* expected, int64_t count,
                      float tolerance) {
  float largest = 0;
  float worst = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    const float difference = std::abs(values[i] - expected[i]);
    worst = std::isnan(difference) ? difference : std::max(worst, difference);
  }
  if (worst <= tolerance * largest) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(ToAbsl(what), " differ by ", worst, " where values reach ", largest));
}

}  // namespace

absl::Status CheckClose(std::string_view what, const Tensor& values, const Tensor& expected) {
  WEFT_CHECK(values.shape() == expected.shape(), "results of another shape");
  return CheckRun(what, values.As<float>(), expected.As<float>(), values.elements(), kTolerance);
}

absl::Status CheckClose(std::string_view what, const std::vector<float>& values,
                        const std::vector<float>& expected, float tolerance) {
  WEFT_CHECK(values.size() == expected.size(), "results of another size");
  return CheckRun(what, values.data(), expected.data(), static_cast<int64_t>(values.size()), tolerance);
}

Tensor SomeTensor(int64_t batch, int64_t tokens, int64_t dim, uint64_t salt) {
  Tensor tensor = Tensor::Empty(DType::kF32, {batch, tokens, dim});
  std::mt19937_64 random(salt);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.As<float>()[i] = std::uniform_real_distribution<float>(-1.0F, 1.0F)(random);
  }
  return tensor;
}

Tensor PartOf(const Tensor& whole, const SequenceLayout& layout, int rank) {
  Tensor part = Tensor::Empty(whole.dtype(), {whole.dim(0), layout.TokensOf(rank), whole.dim(2)});
  int64_t at = 0;
  for (const TokenRange& range : layout.RangesOf(rank)) {
    const absl::Status copied =
        StridedCopy(whole.view().Slice(1, range.begin, range.count), part.view().Slice(1, at, range.count));
    WEFT_CHECK(copied.ok(), ToStd(copied.message()));
    at += range.count;
  }
  return part;
}

bool SameBits(const PassResult& a, const PassResult& b) {
  return SameBytes(a.y, b.y) && SameBytes(a.dx, b.dx) &&
         a.weight_gradients.size() == b.weight_gradients.size() &&
         std::memcmp(a.weight_gradients.data(), b.weight_gradients.data(),
                     a.weight_gradients.size() * sizeof(float)) == 0;
}

std::vector<float> WeightGradients(Module& block) {
  std::vector<float> gradients;
  for (const auto& parameter : block.AllParameters()) {
    const auto* values = parameter->grad.As<float>();
    gradients.insert(gradients.end(), values, values + parameter->elements());
  }
  return gradients;
}

absl::StatusOr<Tensor> ForwardCalls(Module& block, Invocation& invocation, const Tensor& x, int calls) {
  Tensor hidden = x;
  for (int call = 0; call < calls; ++call) {
    WEFT_ASSIGN_OR_RETURN(const Tensors outputs, block.Forward(invocation, {hidden}));
    hidden = outputs[0];
  }
  return hidden;
}

absl::StatusOr<Tensor> BackwardCalls(Module& block, Invocation& invocation, const Tensor& dy, int calls) {
  Tensor gradient = dy;
  for (int call = 0; call < calls; ++call) {
    WEFT_ASSIGN_OR_RETURN(const Tensors gradients, block.Backward(invocation, {gradient}));
    gradient = gradients[0];
  }
  return gradient;
}

absl::StatusOr<PassResult> PassOf(Module& block, DType dtype, std::shared_ptr<const SequenceParts> sequence,
                                  const Tensor& x, const Tensor& dy, int calls) {
  Invocation invocation;
  invocation.SetSequence(std::move(sequence));
  PassResult result;
  WEFT_ASSIGN_OR_RETURN(result.y, ForwardCalls(block, invocation, ConvertTo(x, dtype), calls));
  WEFT_ASSIGN_OR_RETURN(result.dx, BackwardCalls(block, invocation, ConvertTo(dy, dtype), calls));
  WEFT_CHECK(invocation.empty(), "a backward left something saved");
  return result;
}

absl::StatusOr<std::unique_ptr<SplitModel>> SplitModel::Make(Bootstrap& bootstrap,
                                                             const ContextScheme& scheme,
                                                             const ToyBlockOptions& options) {
  std::unique_ptr<SplitModel> split(new SplitModel(bootstrap));
  WEFT_ASSIGN_OR_RETURN(split->fixture_, EngineFixture::Make(bootstrap));
  split->model_ = std::make_unique<ToyModel>(options);
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        DeviceMesh::Create({{"context", bootstrap.size()}}, bootstrap.size()));
  WEFT_ASSIGN_OR_RETURN(
      split->context_,
      ContextParallel::Create(*split->fixture_.engine, split->model_->block(), mesh, {"context"}, scheme));
  return split;
}

absl::Status SplitModel::Parallelize(const AttentionNeighbors& neighbors) {
  for (Attention* attention : model_->block().attentions()) {
    WEFT_RETURN_IF_ERROR(context_->Parallelize(*attention, neighbors));
  }
  return absl::OkStatus();
}

SequenceLayout SplitModel::Layout(int64_t tokens) const {
  return *SequenceLayout::Create({tokens}, context_->scheme().Split(bootstrap_.size()));
}

absl::StatusOr<PassResult> SplitModel::Pass(const Tensor& x, const Tensor& dy, int calls) {
  const SequenceLayout layout = Layout(x.dim(1));
  const int rank = bootstrap_.rank();
  return model_->Pass(layout.Parts(rank), PartOf(x, layout, rank), PartOf(dy, layout, rank), calls);
}

absl::StatusOr<std::vector<float>> SumOverRanks(Bootstrap& bootstrap, const std::vector<float>& values) {
  const std::string_view blob(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, bootstrap.AllGatherBlob(blob, kTestTimeout));
  std::vector<float> sums(values.size(), 0.0F);
  for (const std::string& other : blobs) {
    for (size_t i = 0; i < sums.size(); ++i) {
      float value = 0;
      std::memcpy(&value, other.data() + i * sizeof(float), sizeof(float));
      sums[i] += value;
    }
  }
  return sums;
}

absl::Status CheckPass(Bootstrap& bootstrap, const std::string& where, const SequenceLayout& layout,
                       const PassResult& result, const PassResult& expected) {
  const int rank = bootstrap.rank();
  const std::string what = absl::StrCat(where, ": rank ", rank, "'s ");
  WEFT_RETURN_IF_ERROR(CheckClose(what + "outputs", result.y, PartOf(expected.y, layout, rank)));
  WEFT_RETURN_IF_ERROR(CheckClose(what + "input gradients", result.dx, PartOf(expected.dx, layout, rank)));
  WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, SumOverRanks(bootstrap, result.weight_gradients));
  return CheckClose(what + "weight gradients", weights, expected.weight_gradients);
}

std::vector<ContextScheme> SchemesFor(int ranks) {
  std::vector<ContextScheme> schemes = SingleSchemes();
  if (ranks % 2 != 0 || ranks < 4) return schemes;
  schemes.push_back({.ulysses_degree = 2, .balance = LoadBalance::kHeadTail});
  schemes.push_back(
      {.ulysses_degree = 2, .ring_rotation = RingRotation::kShift, .balance = LoadBalance::kHeadTail});
  return schemes;
}

absl::Status CheckAgainstOneRank(Bootstrap& bootstrap, const ContextScheme& scheme,
                                 const ToyBlockOptions& options, int64_t batch, int64_t tokens, int calls) {
  const Tensor x = SomeTensor(batch, tokens, options.dim, 1);
  const Tensor dy = SomeTensor(batch, tokens, options.dim, 2);
  WEFT_ASSIGN_OR_RETURN(const PassResult expected, ToyModel(options).Pass(nullptr, x, dy, calls));
  WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, scheme, options));
  WEFT_RETURN_IF_ERROR(split->Parallelize(split->model().block().Neighbors()));
  WEFT_ASSIGN_OR_RETURN(const PassResult result, split->Pass(x, dy, calls));
  return CheckPass(bootstrap, absl::StrCat(scheme.Describe(bootstrap.size()), ", ", tokens, " tokens"),
                   split->Layout(tokens), result, expected);
}

}  // namespace weft::testing
