// A bootstrap that wraps each link of another one in a `Link`, which derives from ForwardingLink.
#pragma once

#include <memory>
#include <utility>

#include "tests/support/forwarding_bootstrap.h"
#include "tests/support/forwarding_link.h"
#include "weft/core/status.h"

namespace weft::testing {

template <typename Link>
class BootstrapOfLinks final : public ForwardingBootstrap {
 public:
  using ForwardingBootstrap::ForwardingBootstrap;
  absl::StatusOr<std::unique_ptr<WireLink>> OpenLink(absl::Duration timeout) override {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<WireLink> link, ForwardingBootstrap::OpenLink(timeout));
    return std::make_unique<Link>(std::move(link));
  }
};

}  // namespace weft::testing
