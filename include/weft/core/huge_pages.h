// Transparent huge pages of Linux for large blocks of memory.
//
// Note [Huge pages]
// Problem: optimizers, norms and reductions move more memory than the caches hold. With pages of 4 KiB
//   a core waits for the translation of addresses, most of all in a virtual machine, which has two page
//   tables to walk. docs/benchmarks.md has rates of both sizes of pages.
// Rule: those huge pages that lie wholly in a block are asked for; the rest of the block has small
//   pages. Private memory is advised, so that the fault of its first use takes a huge page.
//   Memory that processes share is mostly excluded by the kernel's settings, but MADV_COLLAPSE does not
//   depend on them. So the first small page of each huge page is populated, and one call turns all of
//   them into huge pages. This takes less time than to populate small pages.
// Why it suffices: a block takes no memory beyond its end. Where the kernel has no huge pages left, or
//   is older than Linux 6.1, the pages are small, and no value changes. The search for a huge page
//   takes long if memory is fragmented: after one has found none, a process asks for no more in shared
//   memory.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>

namespace weft {

// Bytes of a huge page, a power of two; 0 if there are none.
size_t HugePageBytes();

// Asks for huge pages in [begin, begin + bytes), private memory. Pages that were used stay as they are.
void AdviseHugePages(std::byte* begin, size_t bytes);

// Makes the huge pages of [begin, begin + bytes) resident, a part of a shared mapping that may be written.
// Contents do not change. Has no effect unless address and place in the file agree modulo a huge page.
void PopulateHugePages(std::byte* begin, size_t bytes);

// An address at least `begin` that has the place of `offset` in a huge page. REQUIRES: HugePageBytes() > 0.
std::byte* AlignToHugePage(std::byte* begin, size_t offset);

// Reserves addresses for a mapping of `bytes` of a file from `offset`, so that huge pages of the file are
// huge pages of the addresses. The caller maps memory there by MAP_FIXED, and unmaps it. Null with errno if
// the kernel refuses.
std::byte* ReserveAddresses(size_t bytes, size_t offset);

}  // namespace weft
