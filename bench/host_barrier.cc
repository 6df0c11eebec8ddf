#include "bench/host_barrier.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <thread>

#include "bench/contestant.h"

namespace weft::bench {
namespace {

// A new file reads as zeros, so that whichever rank opens it first need not initialize it.
void* MapFile(const std::string& path, size_t bytes) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  void* mapped = MAP_FAILED;
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0)
    mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    std::perror(path.c_str());
    std::exit(2);
  }
  close(file);
  return mapped;
}

}  // namespace

HostBarrier::HostBarrier(int ranks)
    : ranks_(static_cast<uint64_t>(ranks)),
      yields_(ranks_ > std::thread::hardware_concurrency()),
      arrived_(static_cast<Counter*>(MapFile(SocketPath() + ".barrier", sizeof(Counter)))) {}

HostBarrier::~HostBarrier() { munmap(arrived_, sizeof(Counter)); }

void HostBarrier::Await() {
  const uint64_t all = ranks_ * ++calls_;
  arrived_->fetch_add(1, std::memory_order_acq_rel);
  while (arrived_->load(std::memory_order_acquire) < all) {
    if (yields_) sched_yield();
  }
}

}  // namespace weft::bench
