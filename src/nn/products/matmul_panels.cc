// Matrix products of bf16 factors by panels: blocks for the caches, and threads.
//
// Note [Blocks]
// Problem: tiles must come from the caches nearly as fast as the CPU multiplies them.
// Rule: a block of A takes a quarter of the second-level cache in packed form. All panels of B pass by it, in
//   pieces along k that take a third of the first-level cache; as much again is left for a piece of A. The
//   next panel of B and the place of the results in C are prefetched meanwhile. If k is so large that a block
//   of A would have too few panels, k is divided into depths, and the sums wait in memory between them.
// Why it suffices: of the two operands, one comes from the first level, and the other from the second.
// Every value of C is one sum in the order of k, whatever the blocks: cache sizes and threads change no bit.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/nn/products/element.h"
#include "src/nn/products/matmul_backend.h"
#include "src/nn/products/panel_kernels.h"
#include "src/nn/products/scratch.h"
#include "weft/core/parallel.h"

namespace weft::matmul_panels {
namespace {

constexpr int64_t kBlockBytes = panels::kBlockWords * int64_t{sizeof(uint32_t)};
constexpr int64_t kLineBytes = 64;

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t CacheBytes(int name, int64_t otherwise) {
  const int64_t bytes = sysconf(name);
  return bytes > 0 ? bytes : otherwise;
}

// Sizes of the parts of a product. See Note [Blocks].
struct Blocks {
  int64_t piece;     // K blocks of a piece of B.
  int64_t depth;     // K blocks of a block of A.
  int64_t a_panels;  // Panels of a block of A.
  int64_t b_panels;  // Panels of B that are packed at once.
};

Blocks BlocksFor(const Product& product) {
  static const int64_t first_level = CacheBytes(_SC_LEVEL1_DCACHE_SIZE, int64_t{32} << 10);
  static const int64_t second_level = CacheBytes(_SC_LEVEL2_CACHE_SIZE, int64_t{1} << 20);
  constexpr int64_t kFewestPanels = 8;  // Of a block of A.
  constexpr int64_t kPackedParts = 4;   // Packed panels of B take up to so many times the second-level cache.
  const int64_t block_of_a = second_level / 4;
  const int64_t piece = std::max<int64_t>(1, first_level / 3 / kBlockBytes);
  const int64_t depth = std::min(Ceil(product.k, panels::kBlock),
                                 std::max(piece, 2 * block_of_a / (kFewestPanels * kBlockBytes)));
  const int64_t panel_bytes = depth * kBlockBytes;
  return {std::min(piece, depth), depth,
          std::clamp<int64_t>(block_of_a / panel_bytes, 1, Ceil(product.m, panels::kPanel)),
          std::clamp<int64_t>(kPackedParts * second_level / panel_bytes, 1, Ceil(product.n, panels::kPanel))};
}

panels::Source SourceOf(const Factor& factor, bool strided, int64_t line, int64_t k) {
  const int64_t offset = strided ? k * factor.leading + line : line * factor.leading + k;
  return {static_cast<const uint16_t*>(factor.data) + offset, factor.leading, strided};
}

// A part of a dimension of `size` elements: panels of lines, or k blocks.
struct Part {
  int64_t begin, count, size;
};

void Pack(panels::Operand operand, const Factor& factor, const Part& panels, const Part& blocks,
          uint32_t* packed) {
  // A's values along k are neighbours in a row; B's are in a column, so in a row of its transpose.
  const bool strided = factor.transposed == (operand == panels::Operand::kA);
  ParallelFor(panels.count, 1, [&](int64_t begin, int64_t end) {
    // K blocks outside: what is strided is then read in the order of its addresses.
    for (int64_t block = 0; block < blocks.count; ++block) {
      const int64_t k = (blocks.begin + block) * panels::kBlock;
      for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t line = (panels.begin + panel) * panels::kPanel;
        panels::PackPanelBlock(operand, SourceOf(factor, strided, line, k), panels.size - line,
                               blocks.size - k,
                               packed + (panel * blocks.count + block) * panels::kBlockWords);
      }
    }
  });
}

// Stores the product of two panels. `row` and `column` are its place in C.
void Store(const Product& product, int64_t row, int64_t column, const float* sums) {
  const int64_t rows = std::min(panels::kPanel, product.m - row);
  if (product.c_dtype == DType::kBF16 && product.beta == 0.0F && column + panels::kPanel <= product.n) {
    panels::StoreBf16Rows(sums, rows, static_cast<uint16_t*>(product.c) + row * product.c_leading + column,
                          product.c_leading);
    return;
  }
  WithElementType(product.c_dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t i = 0; i < rows; ++i) {
      T* target = static_cast<T*>(product.c) + (row + i) * product.c_leading + column;
      const float* quadrant =
          sums + (i / panels::kTile) * 2 * panels::kTileWords + (i % panels::kTile) * panels::kTile;
      for (int64_t j = 0; j < panels::kPanel && column + j < product.n; j += panels::kTile) {
        StoreSumRun(quadrant + j / panels::kTile * panels::kTileWords, product.beta,
                    std::min(panels::kTile, product.n - column - j), target + j);
      }
    }
  });
}

// A packed block of A and packed panels of B, and their place in the product.
struct Packed {
  const panels::PanelUnit& unit;
  const uint32_t* a;
  const uint32_t* b;
  int64_t a_begin = 0, a_panels = 0;
  int64_t b_begin = 0, b_panels = 0;
  int64_t depth_begin = 0, depth = 0;  // K blocks.
};

// Fetches the lines of [data, data + bytes) into the second-level cache.
void Prefetch(const void* data, int64_t bytes) {
  for (int64_t byte = 0; byte < bytes; byte += kLineBytes)
    __builtin_prefetch(static_cast<const std::byte*>(data) + byte, /*rw=*/0, /*locality=*/2);
}

// Fetches the place in C of the product of two panels, to write to it.
void PrefetchTarget(const Product& product, int64_t row, int64_t column) {
  const auto element = static_cast<int64_t>(SizeOf(product.c_dtype));
  const int64_t rows = std::min(panels::kPanel, product.m - row);
  const int64_t bytes = std::min(panels::kPanel, product.n - column) * element;
  for (int64_t i = 0; i < rows; ++i) {
    const auto* line =
        static_cast<const std::byte*>(product.c) + ((row + i) * product.c_leading + column) * element;
    for (int64_t byte = 0; byte < bytes; byte += kLineBytes)
      __builtin_prefetch(line + byte, /*rw=*/1, /*locality=*/2);
  }
}

// Adds the products of a panel of B with all panels of the block of A to `sums`,
// [panel of A][kProductFloats].
void MultiplyPanel(const Product& product, const Packed& packed, int64_t b_panel, int64_t piece,
                   float* sums) {
  const int64_t panel_words = packed.depth * panels::kBlockWords;
  const bool has_next = b_panel + 1 < packed.b_panels;
  for (int64_t k = 0; k < packed.depth; k += piece) {
    const int64_t blocks = std::min(piece, packed.depth - k);
    const int64_t share = Ceil(blocks, packed.a_panels);  // Of the next panel of B, for each panel of A.
    const uint32_t* b = packed.b + b_panel * panel_words + k * panels::kBlockWords;
    for (int64_t panel = 0; panel < packed.a_panels; ++panel) {
      if (has_next) {
        const int64_t begin = std::min(panel * share, blocks);
        Prefetch(b + panel_words + begin * panels::kBlockWords,
                 std::min(share, blocks - begin) * kBlockBytes);
      }
      if (k == 0) {
        PrefetchTarget(product, (packed.a_begin + panel) * panels::kPanel,
                       (packed.b_begin + b_panel) * panels::kPanel);
      }
      packed.unit.multiply(packed.a + panel * panel_words + k * panels::kBlockWords, b, blocks,
                           packed.depth_begin + k > 0, sums + panel * panels::kProductFloats);
    }
  }
}

// Memory of one product. Scratch of the calling thread, which other threads of the product use, too.
struct Memory {
  uint32_t* a;  // A block of A.
  uint32_t* b;  // Panels of B.
  float* sums;  // Null, or the sums that wait between depths: [panel of B][panel of A][kProductFloats].
};

uint32_t* Words(Scratch& scratch, int64_t words) {
  return static_cast<uint32_t*>(scratch.Bytes(static_cast<size_t>(words) * sizeof(uint32_t)));
}

Memory MemoryFor(const Product& product, const Blocks& blocks) {
  static thread_local Scratch a;
  static thread_local Scratch b;
  static thread_local Scratch sums;
  const int64_t panel_words = blocks.depth * panels::kBlockWords;
  const bool has_depths = blocks.depth * panels::kBlock < product.k;
  const int64_t products = Ceil(product.n, panels::kPanel) * Ceil(product.m, panels::kPanel);
  return {Words(a, blocks.a_panels * panel_words), Words(b, blocks.b_panels * panel_words),
          has_depths ? sums.Floats(products * panels::kProductFloats) : nullptr};
}

// Multiplies the packed panels. Stores the results after the last depth.
void MultiplyPacked(const Product& product, const Packed& packed, int64_t piece, float* waiting_sums) {
  const int64_t m_panels = Ceil(product.m, panels::kPanel);
  const bool is_last = (packed.depth_begin + packed.depth) * panels::kBlock >= product.k;
  ParallelFor(packed.b_panels, 1, [&](int64_t begin, int64_t end) {
    static thread_local Scratch own_sums;
    const panels::PanelScope scope(packed.unit);
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t place = (packed.b_begin + panel) * m_panels + packed.a_begin;
      float* sums = waiting_sums == nullptr ? own_sums.Floats(packed.a_panels * panels::kProductFloats)
                                            : waiting_sums + place * panels::kProductFloats;
      MultiplyPanel(product, packed, panel, piece, sums);
      for (int64_t i = 0; is_last && i < packed.a_panels; ++i) {
        Store(product, (packed.a_begin + i) * panels::kPanel, (packed.b_begin + panel) * panels::kPanel,
              sums + i * panels::kProductFloats);
      }
    }
  });
}

}  // namespace

bool Supports(DType factor_dtype, DType) {
  return factor_dtype == DType::kBF16 && panels::FastestPanelUnit() != nullptr;
}

bool IsWorthIt(const Product& product) {
  constexpr int64_t kSmallest = 256;
  return panels::AmxUnit() != nullptr && std::min({product.m, product.n, product.k}) >= kSmallest;
}

void Multiply(const Product& product) {
  const Blocks blocks = BlocksFor(product);
  const Memory memory = MemoryFor(product, blocks);
  const int64_t k_blocks = Ceil(product.k, panels::kBlock);
  const int64_t m_panels = Ceil(product.m, panels::kPanel);
  const int64_t n_panels = Ceil(product.n, panels::kPanel);
  Packed packed{*panels::FastestPanelUnit(), memory.a, memory.b};
  for (int64_t k = 0; k < k_blocks; k += blocks.depth) {
    packed.depth_begin = k;
    packed.depth = std::min(blocks.depth, k_blocks - k);
    for (int64_t j = 0; j < n_panels; j += blocks.b_panels) {
      packed.b_begin = j;
      packed.b_panels = std::min(blocks.b_panels, n_panels - j);
      Pack(panels::Operand::kB, product.b, {j, packed.b_panels, product.n}, {k, packed.depth, product.k},
           memory.b);
      for (int64_t i = 0; i < m_panels; i += blocks.a_panels) {
        packed.a_begin = i;
        packed.a_panels = std::min(blocks.a_panels, m_panels - i);
        Pack(panels::Operand::kA, product.a, {i, packed.a_panels, product.m}, {k, packed.depth, product.k},
             memory.a);
        MultiplyPacked(product, packed, blocks.piece, memory.sums);
      }
    }
  }
}

}  // namespace weft::matmul_panels
