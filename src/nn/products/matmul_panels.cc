// Matrix products of bf16 factors by panels: blocks for the caches, and threads.
//
// Note [Blocks]
// Problem: tiles must come from the caches nearly as fast as the CPU multiplies them, and C is written once.
// Rule: a thread packs a block of B that takes half of the second-level cache. All panels of A pass by it, in
//   pieces along k that take a third of the first-level cache; as much again is left for a piece of B.
//   The next panel of A and the place of the results in C are prefetched meanwhile. If k is so large that a
//   block of B would have too few panels, k is divided into depths, and the sums wait in memory between them.
// Why it suffices: of the two operands, one comes from the first level, and the other from the second. The
//   results of a panel of A and a block of B are whole runs of rows of C, so a thread writes to 32 pages.
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
#include "weft/core/rounding.h"

namespace weft::matmul_panels {
namespace {

constexpr int64_t kBlockBytes = panels::kBlockWords * int64_t{sizeof(uint32_t)};
constexpr int64_t kLineBytes = 64;

int64_t CacheBytes(int name, int64_t otherwise) {
  const int64_t bytes = sysconf(name);
  return bytes > 0 ? bytes : otherwise;
}

int64_t SecondLevelBytes() {
  static const int64_t bytes = CacheBytes(_SC_LEVEL2_CACHE_SIZE, int64_t{1} << 20);
  return bytes;
}

// Sizes of the parts of a product. See Note [Blocks].
struct Blocks {
  int64_t piece;     // K blocks of a piece of A.
  int64_t depth;     // K blocks of a block of B.
  int64_t b_panels;  // Panels of a block of B.
  int64_t a_panels;  // Panels of A that are packed at once.
};

Blocks BlocksFor(const Product& product) {
  static const int64_t first_level = CacheBytes(_SC_LEVEL1_DCACHE_SIZE, int64_t{32} << 10);
  constexpr int64_t kFewestPanels = 8;  // A block of B has as many or more.
  constexpr int64_t kPackedParts = 4;   // Packed panels of A take up to so many times the second-level cache.
  const int64_t block_of_b = SecondLevelBytes() / 2;
  const int64_t piece = std::max<int64_t>(1, first_level / 3 / kBlockBytes);
  const int64_t depth = std::min(CeilDiv(product.k, panels::kBlock),
                                 std::max(piece, block_of_b / (kFewestPanels * kBlockBytes)));
  const int64_t panel_bytes = depth * kBlockBytes;
  const int64_t panels_of_a_thread = CeilDiv(CeilDiv(product.n, panels::kPanel), ThreadCount());
  return {std::min(piece, depth), depth, std::clamp<int64_t>(block_of_b / panel_bytes, 1, panels_of_a_thread),
          std::clamp<int64_t>(kPackedParts * SecondLevelBytes() / panel_bytes, 1,
                              CeilDiv(product.m, panels::kPanel))};
}

panels::Source SourceOf(const Factor& factor, bool strided, int64_t line, int64_t k) {
  const int64_t offset = strided ? k * factor.leading + line : line * factor.leading + k;
  return {static_cast<const uint16_t*>(factor.data) + offset, factor.leading, strided};
}

// A part of a dimension of `size` elements: panels of lines, or k blocks.
struct Part {
  int64_t begin, count, size;
};

// The k blocks of some panels in the order in which they are packed: the order of their addresses.
struct BlockPlace {
  int64_t panel, block;
};
struct BlockOrder {
  int64_t first_panel, panels, first_block, blocks;
  bool strided;  // As in Source: panels then are neighbors, otherwise k blocks.

  int64_t size() const { return panels * blocks; }
  BlockPlace operator[](int64_t i) const {
    return strided ? BlockPlace{first_panel + i % panels, first_block + i / panels}
                   : BlockPlace{first_panel + i / blocks, first_block + i % blocks};
  }
};

// The distance of prefetches in k blocks, each 32 pieces of 64 bytes. CPUs do not foresee these addresses
// by themselves: without prefetches, packing of weights that are not in a cache takes 3 times as long.
constexpr int64_t kBlocksAhead = 4;

// Fetches the values of a k block, as PackPanelBlock reads them, into the first-level cache.
void PrefetchSource(const panels::Source& source, int64_t lines, int64_t depth) {
  const int64_t rows = std::min(panels::kBlock, source.strided ? depth : lines);
  for (int64_t row = 0; row < rows; ++row)
    __builtin_prefetch(source.data + row * source.leading, /*rw=*/0, /*locality=*/3);
}

void Pack(panels::Operand operand, const Factor& factor, const Part& panels, const Part& blocks,
          uint32_t* packed) {
  // A's values along k are neighbors in a row; B's are in a column, so in a row of its transpose.
  const bool strided = factor.transposed == (operand == panels::Operand::kA);
  ParallelFor(panels.count, 1, [&](int64_t begin, int64_t end) {
    const BlockOrder order = {panels.begin + begin, end - begin, blocks.begin, blocks.count, strided};
    const auto source = [&](const BlockPlace& place) {
      return SourceOf(factor, strided, place.panel * panels::kPanel, place.block * panels::kBlock);
    };
    for (int64_t i = 0; i < order.size(); ++i) {
      const BlockPlace place = order[i];
      if (i + kBlocksAhead < order.size()) {
        const BlockPlace later = order[i + kBlocksAhead];
        PrefetchSource(source(later), panels.size - later.panel * panels::kPanel,
                       blocks.size - later.block * panels::kBlock);
      }
      const int64_t panel = place.panel - panels.begin;
      panels::PackPanelBlock(
          operand, source(place), panels.size - place.panel * panels::kPanel,
          blocks.size - place.block * panels::kBlock,
          packed + (panel * blocks.count + place.block - blocks.begin) * panels::kBlockWords);
    }
  });
}

// A product with a transposed A is the gradient of weights. A reduction reads it later, and the next product
// does not. In f32 it is written past the caches, unless it fits into the second level.
bool StreamsResults(const Product& product) {
  constexpr auto kFloat = int64_t{sizeof(float)};
  return product.a.transposed && product.c_dtype == DType::kF32 && product.beta == 0.0F &&
         product.m * product.n * kFloat > SecondLevelBytes() &&
         product.c_leading * kFloat % kLineBytes == 0 &&
         reinterpret_cast<uintptr_t>(product.c) % kLineBytes == 0;
}

// Stores the product of two panels. `row` and `column` are its place in C.
void Store(const Product& product, bool streams, int64_t row, int64_t column, const float* sums) {
  const int64_t rows = std::min(panels::kPanel, product.m - row);
  if (product.beta == 0.0F && column + panels::kPanel <= product.n) {
    const int64_t place = row * product.c_leading + column;
    if (product.c_dtype == DType::kBF16) {
      panels::StoreBf16Rows(sums, rows, static_cast<uint16_t*>(product.c) + place, product.c_leading);
      return;
    }
    if (product.c_dtype == DType::kF32) {
      const auto store = streams ? panels::StreamFloatRows : panels::StoreFloatRows;
      store(sums, rows, static_cast<float*>(product.c) + place, product.c_leading);
      return;
    }
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

// Packed panels of A and a packed block of B, and their place in the product.
struct Packed {
  const panels::PanelUnit& unit;
  const uint32_t* a;
  const uint32_t* b;
  int64_t a_begin = 0, a_panels = 0;
  int64_t b_begin = 0, b_panels = 0;
  int64_t depth_begin = 0, depth = 0;  // K blocks.
  bool streams = false;                // See StreamsResults.
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

// Adds the products of a panel of A with all panels of the block of B to `sums`,
// [panel of B][kProductFloats].
void MultiplyPanel(const Product& product, const Packed& packed, int64_t a_panel, int64_t piece,
                   float* sums) {
  const int64_t panel_words = packed.depth * panels::kBlockWords;
  const bool has_next = a_panel + 1 < packed.a_panels;
  for (int64_t k = 0; k < packed.depth; k += piece) {
    const int64_t blocks = std::min(piece, packed.depth - k);
    // With each panel of B, so many blocks of the next panel of A are packed.
    const int64_t share = CeilDiv(blocks, packed.b_panels);
    const uint32_t* a = packed.a + a_panel * panel_words + k * panels::kBlockWords;
    for (int64_t panel = 0; panel < packed.b_panels; ++panel) {
      if (has_next) {
        const int64_t begin = std::min(panel * share, blocks);
        Prefetch(a + panel_words + begin * panels::kBlockWords,
                 std::min(share, blocks - begin) * kBlockBytes);
      }
      if (k == 0 && !packed.streams) {
        PrefetchTarget(product, (packed.a_begin + a_panel) * panels::kPanel,
                       (packed.b_begin + panel) * panels::kPanel);
      }
      packed.unit.multiply(a, packed.b + panel * panel_words + k * panels::kBlockWords, blocks,
                           packed.depth_begin + k > 0, sums + panel * panels::kProductFloats);
    }
  }
}

uint32_t* Words(Scratch& scratch, int64_t words) {
  return static_cast<uint32_t*>(scratch.Bytes(static_cast<size_t>(words) * sizeof(uint32_t)));
}

// Multiplies the packed panels. Stores the results after the last depth. `sums` are those that wait between
// depths, [panel of A][panel of B][kProductFloats], or null if there is one depth.
void MultiplyPacked(const Product& product, const Packed& packed, int64_t piece, float* waiting_sums) {
  static thread_local Scratch own_sums;
  const int64_t n_panels = CeilDiv(product.n, panels::kPanel);
  const bool is_last = (packed.depth_begin + packed.depth) * panels::kBlock >= product.k;
  for (int64_t panel = 0; panel < packed.a_panels; ++panel) {
    const int64_t place = (packed.a_begin + panel) * n_panels + packed.b_begin;
    float* sums = waiting_sums == nullptr ? own_sums.Floats(packed.b_panels * panels::kProductFloats)
                                          : waiting_sums + place * panels::kProductFloats;
    MultiplyPanel(product, packed, panel, piece, sums);
    for (int64_t i = 0; is_last && i < packed.b_panels; ++i) {
      Store(product, packed.streams, (packed.a_begin + panel) * panels::kPanel,
            (packed.b_begin + i) * panels::kPanel, sums + i * panels::kProductFloats);
    }
  }
}

}  // namespace

bool Supports(DType factor_dtype, DType) {
  return factor_dtype == DType::kBF16 && panels::FastestPanelUnit() != nullptr;
}

bool IsWorthIt(const Product& product) {
  constexpr int64_t kSmallest = 128;
  return panels::AmxUnit() != nullptr && std::min({product.m, product.n, product.k}) >= kSmallest;
}

int64_t WaitingSumBytes(const Product& product) {
  if (BlocksFor(product).depth >= CeilDiv(product.k, panels::kBlock)) return 0;
  return CeilDiv(product.m, panels::kPanel) * CeilDiv(product.n, panels::kPanel) * panels::kProductFloats *
         int64_t{sizeof(float)};
}

void Multiply(const Product& product) {
  static thread_local Scratch packed_a;
  static thread_local Scratch waiting_sums;
  const panels::PanelUnit& unit = *panels::FastestPanelUnit();
  const Blocks blocks = BlocksFor(product);
  const bool streams = StreamsResults(product);
  const int64_t panel_words = blocks.depth * panels::kBlockWords;
  const int64_t k_blocks = CeilDiv(product.k, panels::kBlock);
  const int64_t m_panels = CeilDiv(product.m, panels::kPanel);
  const int64_t n_panels = CeilDiv(product.n, panels::kPanel);
  uint32_t* const a = Words(packed_a, blocks.a_panels * panel_words);
  const int64_t sum_bytes = WaitingSumBytes(product);
  auto* const sums =
      sum_bytes > 0 ? static_cast<float*>(waiting_sums.Bytes(static_cast<size_t>(sum_bytes))) : nullptr;
  for (int64_t k = 0; k < k_blocks; k += blocks.depth) {
    const int64_t depth = std::min(blocks.depth, k_blocks - k);
    for (int64_t i = 0; i < m_panels; i += blocks.a_panels) {
      const int64_t a_panels = std::min(blocks.a_panels, m_panels - i);
      Pack(panels::Operand::kA, product.a, {i, a_panels, product.m}, {k, depth, product.k}, a);
      ParallelFor(n_panels, 1, [&](int64_t begin, int64_t end) {
        static thread_local Scratch packed_b;
        uint32_t* const b = Words(packed_b, blocks.b_panels * panel_words);
        const panels::PanelScope scope(unit);
        for (int64_t j = begin; j < end; j += blocks.b_panels) {
          const int64_t b_panels = std::min(blocks.b_panels, end - j);
          Pack(panels::Operand::kB, product.b, {j, b_panels, product.n}, {k, depth, product.k}, b);
          MultiplyPacked(product, {unit, a, b, i, a_panels, j, b_panels, k, depth, streams}, blocks.piece,
                         sums);
        }
        if (streams) panels::EndStreams();
      });
    }
  }
}

}  // namespace weft::matmul_panels
