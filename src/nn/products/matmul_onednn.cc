// Matrix products with oneDNN, by one of two functions: matmul primitives, which are created and cached for
// each shape and thread, or dnnl_sgemm, which needs no preparation.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include <absl/container/flat_hash_map.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "src/nn/products/matmul_backend.h"
#include "src/nn/products/scratch.h"
#include "weft/core/parallel.h"

namespace weft::matmul_onednn {
namespace {

// From this k on, dnnl_sgemm is faster than the primitive (measured: 112 against 80 GFLOP/s at 128 x 768 x
// 32000, equal at k = 2048).
constexpr int64_t kSgemmDepth = 8192;
// From this m on, dnnl_sgemm is as fast as the primitive when B is the transpose of a dense matrix.
constexpr int64_t kManyRows = 1024;
// dnnl_sgemm copies its factors only if C has at least about kCopiedRows rows and columns. Otherwise it reads
// them in place. If A is transposed and k is at least kDeep, each step along k then touches another page
// (measured: 103 against 151 GFLOP/s of the primitive at 1536 x 512 x 1024).
constexpr int64_t kCopiedRows = 1024;
constexpr int64_t kDeep = 512;

// True if dnnl_sgemm is faster than the primitive (measured). On one thread it is 2 to 20% faster, from
// 64 x 64 x 64 to 32000 x 512 x 512. If B is the transpose of a dense matrix, the primitive is faster, by up
// to 20% for few rows. On several threads the primitive divides the work better.
bool PrefersSgemm(const Product& product) {
  if (product.factor_dtype != DType::kF32) return false;
  if (product.k >= kSgemmDepth) return true;
  if (ThreadCount() > 1) return false;
  const bool dense_transpose = product.b.transposed && product.b.leading == product.k;
  if (dense_transpose && product.m < kManyRows) return false;
  const bool strides_deep = product.a.transposed && product.k >= kDeep;
  return !strides_deep || std::min(product.m, product.n) >= kCopiedRows;
}
// Size limit of a thread's primitive cache, which is cleared when full. A training run needs a few dozen
// shapes.
constexpr size_t kMaxPrimitives = 4096;

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::data_type DataType(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return dnnl::memory::data_type::bf16;
    case DType::kF16:
      return dnnl::memory::data_type::f16;
    default:
      return dnnl::memory::data_type::f32;
  }
}

dnnl::memory::desc Describe(int64_t rows, int64_t columns, DType dtype, int64_t leading, bool transposed) {
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, leading} : dnnl::memory::dims{leading, 1};
  return {{rows, columns}, DataType(dtype), strides};
}

// A matmul primitive and its argument descriptors. Each Run sets the addresses of the operands.
class PreparedMatmul {
 public:
  explicit PreparedMatmul(const Product& product) {
    const auto a =
        Describe(product.m, product.k, product.factor_dtype, product.a.leading, product.a.transposed);
    const auto b =
        Describe(product.k, product.n, product.factor_dtype, product.b.leading, product.b.transposed);
    const auto c = Describe(product.m, product.n, product.c_dtype, product.c_leading, false);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (product.beta != 0.0F) {
      dnnl::post_ops accumulate;
      accumulate.append_sum(product.beta);
      attributes.set_post_ops(accumulate);
    }
    const dnnl::matmul::primitive_desc descriptor(dnnl::matmul::desc(a, b, c), attributes, Engine());
    primitive_ = dnnl::matmul(descriptor);
    const auto argument = [](const dnnl::memory::desc& memory) {
      return dnnl::memory(memory, Engine(), nullptr);
    };
    arguments_ = {{DNNL_ARG_SRC, argument(a)},
                  {DNNL_ARG_WEIGHTS, argument(b)},
                  {DNNL_ARG_DST, argument(c)},
                  {DNNL_ARG_SCRATCHPAD, argument(descriptor.scratchpad_desc())}};
    scratchpad_bytes_ = descriptor.scratchpad_desc().get_size();
  }

  void Run(const Product& product, const dnnl::stream& stream, Scratch& scratch) {
    // set_data_handle takes a non-const pointer, but the library only reads the factors.
    arguments_[DNNL_ARG_SRC].set_data_handle(const_cast<void*>(product.a.data));
    arguments_[DNNL_ARG_WEIGHTS].set_data_handle(const_cast<void*>(product.b.data));
    arguments_[DNNL_ARG_DST].set_data_handle(product.c);
    arguments_[DNNL_ARG_SCRATCHPAD].set_data_handle(scratch.Bytes(scratchpad_bytes_));
    primitive_.execute(stream, arguments_);
  }

 private:
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
  size_t scratchpad_bytes_ = 0;
};

// Cache key of a primitive: all properties that it depends on. The thread count is one of them, because the
// library divides the work over threads when it creates the primitive.
using Key = std::array<int64_t, 9>;

Key KeyOf(const Product& product) {
  const int64_t flags = (product.a.transposed ? 1 : 0) | (product.b.transposed ? 2 : 0) |
                        static_cast<int64_t>(product.factor_dtype) << 2 |
                        static_cast<int64_t>(product.c_dtype) << 6;
  return {product.m,
          product.n,
          product.k,
          product.a.leading,
          product.b.leading,
          product.c_leading,
          flags,
          ThreadCount(),
          std::bit_cast<int32_t>(product.beta)};
}

void MultiplyByPrimitive(const Product& product) {
  static thread_local absl::flat_hash_map<Key, PreparedMatmul> prepared;
  static thread_local Scratch scratch;
  static thread_local const dnnl::stream stream(Engine());
  if (prepared.size() >= kMaxPrimitives) prepared.clear();
  const Key key = KeyOf(product);
  auto found = prepared.find(key);
  if (found == prepared.end()) found = prepared.emplace(key, PreparedMatmul(product)).first;
  found->second.Run(product, stream, scratch);
}

void MultiplyBySgemm(const Product& product) {
  const auto status =
      dnnl_sgemm(product.a.transposed ? 'T' : 'N', product.b.transposed ? 'T' : 'N', product.m, product.n,
                 product.k, 1.0F, static_cast<const float*>(product.a.data), product.a.leading,
                 static_cast<const float*>(product.b.data), product.b.leading, product.beta,
                 static_cast<float*>(product.c), product.c_leading);
  WEFT_CHECK(status == dnnl_success, "dnnl_sgemm rejected its arguments");
}

// True if the library has a kernel for products of f16 factors that is not its slow reference: from 2.7 on,
// on a CPU with AVX512-FP16. Such a kernel accumulates in fp32.
bool HasF16Kernels() {
  const auto is_fast = [](DType c_dtype) {
    constexpr int64_t kSize = 256;
    const auto factor = Describe(kSize, kSize, DType::kF16, kSize, false);
    const dnnl::matmul::desc product(factor, factor, Describe(kSize, kSize, c_dtype, kSize, false));
    const dnnl::matmul::primitive_desc kernel(product, dnnl::primitive_attr(), Engine(),
                                              /*allow_empty=*/true);
    return kernel && std::string_view(kernel.impl_info_str()).substr(0, 3) != "ref";
  };
  return is_fast(DType::kF32) && is_fast(DType::kF16);
}

bool HasBf16Instructions() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  constexpr auto kNeeded = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (isa & kNeeded) == kNeeded;
}

}  // namespace

bool Supports(DType factor_dtype, DType c_dtype) {
  static const bool has_bf16 = HasBf16Instructions();
  static const bool has_f16 = HasF16Kernels();
  if (factor_dtype == DType::kF32) return c_dtype == DType::kF32;
  const bool has_factor = factor_dtype == DType::kBF16 ? has_bf16 : has_f16;
  return has_factor && (c_dtype == DType::kF32 || c_dtype == factor_dtype);
}

void Multiply(const Product& product) {
  PrefersSgemm(product) ? MultiplyBySgemm(product) : MultiplyByPrimitive(product);
}

}  // namespace weft::matmul_onednn
