#include "weft/memory/private_heap.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

TEST(PrivateHeap, ReusesAndMergesTheHolesOfFreedBlocks) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PrivateHeap> heap, PrivateHeap::Create(1024));
  std::byte* const first = heap->Allocate(100);
  std::byte* const second = heap->Allocate(128);
  std::byte* const third = heap->Allocate(1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0);
  EXPECT_EQ(heap->in_use_bytes(), 128 + 128 + 64);
  *third = std::byte{7};
  heap->Free(first);
  heap->Free(second);
  EXPECT_EQ(heap->Allocate(256), first);
  EXPECT_EQ(*third, std::byte{7});
  EXPECT_EQ(heap->in_use_bytes(), 256 + 64);
}

TEST(PrivateHeap, HasNoBlockThatFitsNoHole) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PrivateHeap> heap, PrivateHeap::Create(1024));
  EXPECT_EQ(heap->Allocate(1025), nullptr);
  std::byte* const whole = heap->Allocate(1024);
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(heap->Allocate(1), nullptr);
  EXPECT_TRUE(heap->Contains(whole + 1023));
  EXPECT_FALSE(heap->Contains(whole + 1024));
  heap->Free(whole);
  EXPECT_EQ(heap->in_use_bytes(), 0);
}

TEST(PrivateHeap, ReleasesTheMemoryOfHolesAndKeepsThatOfBlocks) {
  constexpr size_t kBytes = size_t{1} << 20;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PrivateHeap> heap, PrivateHeap::Create(3 * kBytes));
  std::byte* const freed = heap->Allocate(kBytes - 64);
  std::byte* const kept = heap->Allocate(64);  // In the last page of the hole.
  std::fill_n(freed, kBytes, std::byte{7});
  heap->Free(freed);
  heap->ReleaseHoles();
  EXPECT_EQ(std::count(freed, freed + kBytes - 4096, std::byte{0}), kBytes - 4096);
  EXPECT_EQ(std::count(kept, kept + 64, std::byte{7}), 64);
}

TEST(PrivateHeap, GivesAForkedChildNothingAndKeepsTheBlocksOfTheParent) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PrivateHeap> heap, PrivateHeap::Create(1024));
  std::byte* const block = heap->Allocate(64);
  *block = std::byte{7};
  const pid_t child = fork();
  if (child == 0) {
    const bool is_right =
        heap->Allocate(64) == nullptr && *block == std::byte{7} && heap->in_use_bytes() == 0;
    heap->Free(block);
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(heap->in_use_bytes(), 64);
}

TEST(PrivateHeap, RefusesMoreAddressesThanTheKernelHas) {
  EXPECT_THAT(PrivateHeap::Create(SIZE_MAX / 2),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the kernel refused to reserve")));
}

}  // namespace
}  // namespace weft
