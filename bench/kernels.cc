// Contestant of bench/run.py: matrix products of linear layers and causal attention, on one thread.
// bench/peers/kernels.py is the contestant of PyTorch.
//
// Both compute on the same values, so that their results can be compared: `check` answers with the checksums
// of the results (bench/formula.h), `run` with the seconds of each repeat. Results have the inputs' dtype.
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/contestant.h"
#include "bench/formula.h"
#include "bench/step_model.h"
#include "bench/tensors.h"
#include "bench/versus.h"
#include "weft/core/parallel.h"
#include "weft/core/tensor.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/matmul.h"

namespace weft::bench {
namespace {

// A kernel on its inputs. `run` writes `results`.
struct Kernel {
  std::function<void()> run;
  std::map<std::string, Tensor> results;
};

Tensor Filled(const std::string& name, const Shape& shape, DType dtype) {
  const Tensor values = Tensor::Empty(DType::kF32, shape);
  FillUniform(name, 1.0, 0, values.elements(), values.As<float>());
  return Converted(values, dtype);
}

// x [tokens, in], weight [out, in], y = x weight^T; its gradient dy.
Kernel LinearKernel(const Request& request) {
  const DType dtype = ComputeDType(StringOf(request, "dtype"));
  const std::string pass = StringOf(request, "pass");
  const int64_t tokens = IntegerOf(request, "tokens");
  const int64_t in = IntegerOf(request, "in");
  const int64_t out = IntegerOf(request, "out");
  const Tensor x = Filled("x", {tokens, in}, dtype);
  const Tensor weight = Filled("weight", {out, in}, dtype);
  const Tensor dy = Filled("dy", {tokens, out}, dtype);
  const auto kernel = [=](const Shape& shape, int64_t inner, const Tensor& a, bool transpose_a,
                          const Tensor& b, bool transpose_b) {
    const Tensor result = Tensor::Empty(dtype, shape);
    const Factor factor_a = {a.view().data, a.shape()[1], transpose_a};
    const Factor factor_b = {b.view().data, b.shape()[1], transpose_b};
    // a and b keep the factors alive.
    const auto run = [=, a = a, b = b] {
      Matmul(shape[0], shape[1], inner, dtype, factor_a, factor_b, 0.0F, dtype, result.view().data, shape[1]);
    };
    return Kernel{run, {{"result", result}}};
  };
  if (pass == "forward") return kernel({tokens, out}, in, x, false, weight, true);
  if (pass == "input_gradient") return kernel({tokens, in}, out, dy, false, weight, false);
  return kernel({out, in}, tokens, dy, true, x, false);
}

// Queries, keys and values [1, tokens, heads, head_dim].
Kernel AttentionKernel(const Request& request) {
  const DType dtype = ComputeDType(StringOf(request, "dtype"));
  const int64_t tokens = IntegerOf(request, "tokens");
  const int64_t heads = IntegerOf(request, "heads");
  const int64_t head_dim = IntegerOf(request, "head_dim");
  const Shape shape = {1, tokens, heads, head_dim};
  const Tensor q = Filled("q", shape, dtype);
  const Tensor k = Filled("k", shape, dtype);
  const Tensor v = Filled("v", shape, dtype);
  const Tensor out = Tensor::Empty(dtype, shape);
  const Tensor lse = Tensor::Empty(DType::kF32, {1, heads, tokens});
  const TokenRuns runs = WholeSequence(tokens);
  const AttentionProblem problem = {{}, DefaultScale(head_dim), 1, 0};
  const auto forward = [=] {
    AttentionForward(problem, q.view(), runs, {{k.view(), v.view(), &runs}}, out.view(), lse.view());
  };
  if (StringOf(request, "pass") == "forward") return {forward, {{"out", out}}};
  forward();
  const Tensor dout = Filled("dout", shape, dtype);
  const Tensor delta = Tensor::Empty(DType::kF32, {1, heads, tokens});
  const Tensor dq = Tensor::Empty(dtype, shape);
  const Tensor dk = Tensor::Empty(dtype, shape);
  const Tensor dv = Tensor::Empty(dtype, shape);
  const auto backward = [=] {
    AttentionDelta(out.view(), dout.view(), delta.view());
    AttentionBackward(problem, q.view(), runs, {{k.view(), v.view(), &runs}},
                      {.lse = lse.view(), .delta = delta.view(), .dout = dout.view()},
                      {.dq = dq.view(), .keys = {{dk.view(), dv.view()}}});
  };
  return {backward, {{"dq", dq}, {"dk", dk}, {"dv", dv}}};
}

// Keeps the kernel of the last request, so that rounds do not fill its inputs anew.
class Kernels {
 public:
  Reply Run(const Request& request) {
    const Kernel& kernel = Find(request);
    kernel.run();  // Not timed, because other contestants have used the caches.
    std::vector<double> seconds;
    for (int i = 0; i < IntegerOf(request, "repeats"); ++i) seconds.push_back(SecondsOf(kernel.run));
    return {{"seconds", seconds}};
  }
  Reply Check(const Request& request) {
    const Kernel& kernel = Find(request);
    kernel.run();
    Reply reply;
    for (const auto& [name, result] : kernel.results) {
      const Tensor values = Converted(result, DType::kF32);
      Checksums checksums(result.elements());
      checksums.Add(values.As<float>(), 0, result.elements());
      checksums.AddTo(reply, name);
    }
    return reply;
  }

 private:
  const Kernel& Find(Request request) {
    request.erase("repeats");
    if (request != request_) {
      kernel_ = StringOf(request, "kernel") == "linear" ? LinearKernel(request) : AttentionKernel(request);
      request_ = request;
    }
    return kernel_;
  }

  Request request_;
  Kernel kernel_;
};

}  // namespace
}  // namespace weft::bench

int main() {
  using namespace weft::bench;
  weft::SetThreadCount(1);
  Kernels kernels;
  Serve(/*rank=*/0, {{"run", [&](const Request& request) { return kernels.Run(request); }},
                     {"check", [&](const Request& request) { return kernels.Check(request); }}});
  return 0;
}
