// A bootstrap whose rank misses the deadline of a chosen exchange although its peers complete it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/support/forwarding_bootstrap.h"
#include "weft/core/status.h"

namespace weft::testing {

class AbandoningBootstrap final : public ForwardingBootstrap {
 public:
  using ForwardingBootstrap::ForwardingBootstrap;

  // The rank misses the deadline of the exchange after `exchanges` further ones.
  void AbandonAfter(int exchanges) { left_ = exchanges; }
  // Number of exchanges so far.
  int exchanges() const { return exchanges_; }
  absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                         absl::Duration timeout) override {
    auto gathered = ForwardingBootstrap::AllGatherBlob(blob, timeout);
    ++exchanges_;
    if (left_-- == 0) return absl::DeadlineExceededError("abandoned");
    return gathered;
  }

 private:
  int left_ = -1;
  int exchanges_ = 0;
};

}  // namespace weft::testing
