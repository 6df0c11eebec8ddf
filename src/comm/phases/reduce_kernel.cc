#include "src/comm/phases/reduce_kernel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "src/comm/base/copy_bytes.h"
#include "src/comm/base/stream_line.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/core/vector_clones.h"

namespace weft {
namespace {

// Elements of a block. A few blocks fit the first-level cache of any CPU.
constexpr int64_t kBlock = 1024;

struct Sum {
  template <typename T>
  static T Fold(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;  // Unsigned addition wraps on overflow.
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <typename T>
  static T Fold(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return (b > a || std::isnan(b)) ? b : a;  // NaN if either operand is.
    } else {
      return b > a ? b : a;
    }
  }
};

struct Min {
  template <typename T>
  static T Fold(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return (b < a || std::isnan(b)) ? b : a;  // NaN if either operand is.
    } else {
      return b < a ? b : a;
    }
  }
};
struct Product {
  template <typename T>
  static T Fold(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      const auto wide = [](T value) { return static_cast<uint64_t>(static_cast<int64_t>(value)); };
      return static_cast<T>(wide(a) * wide(b));  // Wraps on overflow.
    } else {
      return a * b;
    }
  }
};
struct BitAnd {
  template <typename T>
  static T Fold(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <typename T>
  static T Fold(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct BitXor {
  template <typename T>
  static T Fold(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// A factor of 1 changes no bit.
template <typename Op, typename T>
T Scaled(T value, T scale) {
  if constexpr (std::is_same_v<Op, Sum> && std::is_floating_point_v<T>) return value * scale;
  return value;
}

// out[i] = tree(begin + i). REQUIRES: `out` does not overlap what the tree reads.
template <typename T, typename Tree>
void Evaluate(const Tree& tree, int64_t begin, int64_t count, T* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = tree(begin + i);
}
template <typename Tree>
WEFT_VECTOR_CLONES void Evaluate(const Tree& tree, int64_t begin, int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = tree(begin + i);
}

// Stack machine for reduction programs. A stack level is a block of elements of type T. Results are
// multiplied by `scale`.
template <typename T, typename Op>
class BlockMachine {
 public:
  BlockMachine(const ReduceProgram& program, absl::Span<const LeafSource> leaves, double scale)
      : program_(program),
        leaves_(leaves),
        scale_(static_cast<T>(scale)),
        blocks_(Workspace(program.depth)) {}

  // Evaluates elements [begin, begin + count). Returns the result, which lies in `direct` if given, else in a
  // block of the stack. REQUIRES: `direct` is not a leaf.
  const T* Run(int64_t begin, int64_t count, T* direct) {
    bottom_ = direct != nullptr ? direct : Block(0);
    if (WithBalancedTree([&](const auto& tree) { Evaluate(tree, begin, count, bottom_); })) return bottom_;
    int top = -1;
    for (const ReduceInstruction& step : program_.instructions) {
      switch (step.code) {
        case ReduceInstruction::Code::kLoad: {
          const T* a = Leaf(step.a, begin, count, 0);
          std::memcpy(Level(++top), a, static_cast<size_t>(count) * sizeof(T));
          break;
        }
        case ReduceInstruction::Code::kLoadPair: {
          const T* a = Leaf(step.a, begin, count, 0);
          const T* b = Leaf(step.b, begin, count, 1);
          Fold(Level(++top), a, b, count);
          break;
        }
        case ReduceInstruction::Code::kFoldLeaf:
          Fold(Level(top), Level(top), Leaf(step.a, begin, count, 0), count);
          break;
        case ReduceInstruction::Code::kFoldTop:
          --top;
          Fold(Level(top), Level(top), Level(top + 1), count);
          break;
      }
    }
    for (int64_t i = 0; scale_ != T{1} && i < count; ++i) bottom_[i] = Scaled<Op>(bottom_[i], scale_);
    return bottom_;
  }

  // Evaluates all elements, and writes each cache line to the target and its copies with non-temporal stores
  // as soon as it is computed. Alternating between a block of loads and a block of stores takes up to twice
  // as long. Each line is read before it is written, so the target may be a leaf. Returns false, and does
  // nothing, if the program is not a balanced tree or the target and its copies differ in their offset within
  // a cache line.
  bool Stream(const ReduceTarget& target, int64_t count) {
    absl::InlinedVector<T*, 5> outs = {reinterpret_cast<T*>(target.data)};
    for (std::byte* copy : target.copies) outs.push_back(reinterpret_cast<T*>(copy));
    const auto to_next_line = [](const T* out) { return -reinterpret_cast<uintptr_t>(out) % kLineBytes; };
    const size_t head_bytes = to_next_line(outs[0]);
    const bool same_offset =
        head_bytes % sizeof(T) == 0 &&
        std::all_of(outs.begin(), outs.end(), [&](T* out) { return to_next_line(out) == head_bytes; });
    return same_offset && WithBalancedTree([&](const auto& tree) {
             constexpr int64_t kLine = kLineBytes / sizeof(T);
             const int64_t head = std::min(count, static_cast<int64_t>(head_bytes / sizeof(T)));
             const int64_t tail = head + (count - head) / kLine * kLine;
             const auto write = [&](int64_t i) {
               const T element = tree(i);
               for (T* out : outs) out[i] = element;
             };
             for (int64_t i = 0; i < head; ++i) write(i);
             for (int64_t i = head; i < tail; i += kLine) {
               alignas(kLineBytes) std::array<T, kLine> line;
               for (int64_t k = 0; k < kLine; ++k) line[static_cast<size_t>(k)] = tree(i + k);
               for (T* out : outs) StreamLine(out + i, line.data());
             }
             for (int64_t i = tail; i < count; ++i) write(i);
           });
  }

 private:
  // If the program is a balanced tree of 2, 4 or 8 leaves of type T, calls body(tree), where tree(i) is
  // element i of the result. Returns false for all other programs. A single pass that reads all leaves side
  // by side is faster than the stack: it is limited by memory bandwidth alone.
  template <typename Body>
  bool WithBalancedTree(const Body& body) {
    const bool plain = std::all_of(leaves_.begin(), leaves_.end(),
                                   [](const LeafSource& leaf) { return leaf.dtype == kDTypeOf<T>; });
    if (!plain) return false;
    switch (program_.balanced_leaves.size()) {
      case 2:
        body(BalancedTree<2>());
        return true;
      case 4:
        body(BalancedTree<4>());
        return true;
      case 8:
        body(BalancedTree<8>());
        return true;
      default:
        return false;
    }
  }

  template <size_t kLeaves>
  auto BalancedTree() {
    std::array<const T*, kLeaves> sources;
    for (size_t i = 0; i < kLeaves; ++i) sources[i] = Leaf(program_.balanced_leaves[i], 0, 0, 0);
    return
        [sources, scale = scale_](int64_t i) { return Scaled<Op>(FoldTree<0, kLeaves>(sources, i), scale); };
  }
  template <size_t kFirst, size_t kCount, size_t kLeaves>
  static T FoldTree(const std::array<const T*, kLeaves>& sources, int64_t i) {
    if constexpr (kCount == 1) {
      return sources[kFirst][i];
    } else {
      constexpr size_t kHalf = kCount / 2;
      return Op::Fold(FoldTree<kFirst, kHalf>(sources, i), FoldTree<kFirst + kHalf, kHalf>(sources, i));
    }
  }

  // Blocks of the stack, and two more for leaves that are converted to T.
  static T* Workspace(int depth) {
    thread_local std::vector<T> memory;  // Only grows, because each resize clears what it adds.
    memory.resize(std::max(memory.size(), static_cast<size_t>(depth + 2) * kBlock));
    return memory.data();
  }
  static void Fold(T* out, const T* a, const T* b, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = Op::Fold(a[i], b[i]);
  }
  T* Block(int index) { return blocks_ + index * kBlock; }
  T* Level(int level) { return level == 0 ? bottom_ : Block(level); }

  const T* Leaf(int index, int64_t begin, int64_t count, int spare) {
    const LeafSource& leaf = leaves_[static_cast<size_t>(index)];
    const std::byte* source = leaf.data + BytesOf(begin, leaf.dtype);
    if (leaf.dtype == kDTypeOf<T>) return reinterpret_cast<const T*>(source);
    T* widened = Block(program_.depth + spare);
    ConvertRun(source, leaf.dtype, widened, kDTypeOf<T>, count);
    return widened;
  }

  const ReduceProgram& program_;
  absl::Span<const LeafSource> leaves_;
  T scale_;
  T* blocks_;
  T* bottom_ = nullptr;
};

template <typename T, typename Op>
void RunTyped(const ReduceProgram& program, absl::Span<const LeafSource> leaves, const ReduceTarget& target,
              int64_t count) {
  // If the target is also a leaf, its elements may be read after the first write to the block. It is then
  // written after the block is evaluated, like the copies.
  const bool aliased = std::any_of(leaves.begin(), leaves.end(),
                                   [&](const LeafSource& leaf) { return leaf.data == target.data; });
  const bool plain = target.dtype == kDTypeOf<T>;
  const bool direct = plain && !aliased && !target.nontemporal && target.copies.empty();
  BlockMachine<T, Op> machine(program, leaves, plain ? target.scale : 1.0);
  if (plain && target.nontemporal && machine.Stream(target, count)) return;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    const size_t at = static_cast<size_t>(BytesOf(begin, target.dtype));
    const size_t bytes = static_cast<size_t>(BytesOf(length, target.dtype));
    std::byte* out = target.data + at;
    const T* result = machine.Run(begin, length, direct ? reinterpret_cast<T*>(out) : nullptr);
    if (direct) continue;
    const auto* block = reinterpret_cast<const std::byte*>(result);
    if (!plain) {
      ConvertRun(result, kDTypeOf<T>, out, target.dtype, length, target.scale);
      block = out;
    } else {
      CopyBytes(out, block, bytes, target.nontemporal);
    }
    for (std::byte* copy : target.copies) CopyBytes(copy + at, block, bytes, target.nontemporal);
  }
}

template <typename T>
void RunWithOp(const ReduceProgram& program, absl::Span<const LeafSource> leaves, ReduceOp op,
               const ReduceTarget& target, int64_t count) {
  const auto run = [&](auto fold) { RunTyped<T, decltype(fold)>(program, leaves, target, count); };
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return run(Sum());
    case ReduceOp::kMax:
      return run(Max());
    case ReduceOp::kMin:
      return run(Min());
    case ReduceOp::kProduct:
      return run(Product());
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      break;  // RunOnBytes does these.
  }
}

// Bitwise operations are the same for elements of every type: one instance of the kernel serves all.
void RunOnBytes(const ReduceProgram& program, absl::Span<const LeafSource> leaves, ReduceOp op,
                const ReduceTarget& target, int64_t count) {
  absl::InlinedVector<LeafSource, 8> byte_leaves(leaves.begin(), leaves.end());
  for (LeafSource& leaf : byte_leaves) leaf.dtype = DType::kU8;
  ReduceTarget bytes = target;
  bytes.dtype = DType::kU8;
  const int64_t byte_count = BytesOf(count, target.dtype);
  if (op == ReduceOp::kBitAnd) return RunTyped<uint8_t, BitAnd>(program, byte_leaves, bytes, byte_count);
  if (op == ReduceOp::kBitOr) return RunTyped<uint8_t, BitOr>(program, byte_leaves, bytes, byte_count);
  RunTyped<uint8_t, BitXor>(program, byte_leaves, bytes, byte_count);
}

}  // namespace

void RunReduce(const ReduceProgram& program, absl::Span<const LeafSource> leaves, ReduceOp op,
               const ReduceTarget& target, int64_t count) {
  if (IsBitwise(op)) return RunOnBytes(program, leaves, op, target, count);
  switch (target.dtype) {
    case DType::kI32:
      return RunWithOp<int32_t>(program, leaves, op, target, count);
    case DType::kI64:
      return RunWithOp<int64_t>(program, leaves, op, target, count);
    case DType::kI16:
      return RunWithOp<int16_t>(program, leaves, op, target, count);
    case DType::kI8:
      return RunWithOp<int8_t>(program, leaves, op, target, count);
    case DType::kU8:
      return RunWithOp<uint8_t>(program, leaves, op, target, count);
    case DType::kF64:
      return RunWithOp<double>(program, leaves, op, target, count);
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
      return RunWithOp<float>(program, leaves, op, target, count);
  }
}

}  // namespace weft
