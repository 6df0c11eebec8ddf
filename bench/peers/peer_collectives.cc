#include "bench/peers/peer_collectives.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "bench/contestant.h"
#include "bench/host_barrier.h"

namespace weft::bench {
namespace {

// Small integers, so that sums are exact in every order.
float InputOf(int rank, int64_t index) { return static_cast<float>((index + rank) % 64); }

class Buffers {
 public:
  Buffers(const PeerLibrary& library, const std::string& op, int bytes)
      : library_(library), op_(op), bytes_(bytes) {
    const int64_t ranks = library.ranks;
    part_ = bytes / static_cast<int64_t>(sizeof(float)) / ranks;
    input_.resize(static_cast<size_t>(op == "all_gather" ? part_ : part_ * ranks));
    output_.resize(static_cast<size_t>(op == "reduce_scatter" ? part_ : part_ * ranks));
    for (size_t i = 0; i < input_.size(); ++i) input_[i] = InputOf(library.rank, static_cast<int64_t>(i));
  }

  bool Matches(const std::string& op, int bytes) const { return op == op_ && bytes == bytes_; }

  void Run(const std::string& variant) {
    if (library_.run({op_, variant, input_.data(), output_.data(), part_ * library_.ranks})) return;
    Die("unknown operation");
  }

  // Runs the variant and checks its result if it has not run yet. The output is cleared before, as another
  // variant may have left the same result.
  void CheckOnce(const std::string& variant) {
    if (!checked_.insert(variant).second) return;
    std::fill(output_.begin(), output_.end(), -1.0F);  // Results are not negative.
    Run(variant);
    for (int64_t i = 0; i < static_cast<int64_t>(output_.size()); ++i) {
      if (output_[static_cast<size_t>(i)] != Expected(i))
        Die("the result of '" + variant + "' differs from the expected one");
    }
  }

 private:
  float Expected(int64_t i) const {
    if (op_ == "all_gather") return InputOf(static_cast<int>(i / part_), i % part_);
    const int64_t index = op_ == "reduce_scatter" ? part_ * library_.rank + i : i;
    float sum = 0;
    for (int rank = 0; rank < library_.ranks; ++rank) sum += InputOf(rank, index);
    return sum;
  }

  [[noreturn]] void Die(const std::string& what) const {
    std::fprintf(stderr, "bench: %s, %d bytes: %s\n", op_.c_str(), bytes_, what.c_str());
    std::exit(2);
  }

  const PeerLibrary& library_;
  std::string op_;
  int bytes_;
  int64_t part_;
  std::vector<float> input_, output_;
  std::set<std::string> checked_;  // Variants.
};

double SecondsOf(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void ServeCollectives(const PeerLibrary& library) {
  HostBarrier barrier(library.ranks);
  std::unique_ptr<Buffers> buffers;  // Of one operation, because they are large.
  Serve(library.rank, {{"run", [&](const Request& request) {
                          const std::string op = StringOf(request, "op");
                          const std::string variant = StringOf(request, "variant");
                          const int bytes = IntegerOf(request, "bytes");
                          if (!buffers || !buffers->Matches(op, bytes)) {
                            buffers.reset();
                            buffers = std::make_unique<Buffers>(library, op, bytes);
                          }
                          buffers->CheckOnce(variant);
                          std::vector<double> seconds;
                          for (int i = 0; i < IntegerOf(request, "repeats"); ++i) {
                            barrier.Await();
                            seconds.push_back(SecondsOf([&] { buffers->Run(variant); }));
                          }
                          return Reply{{"seconds", seconds}};
                        }}});
}

}  // namespace weft::bench
