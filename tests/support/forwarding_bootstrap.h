// A bootstrap that hands every call on to another one. Tests derive from it and change single calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/mesh/bootstrap.h"

namespace weft::testing {

class ForwardingBootstrap : public Bootstrap {
 public:
  // Lifetime: `base` must outlive this.
  explicit ForwardingBootstrap(Bootstrap& base) : base_(base) {}

  int rank() const override { return base_.rank(); }
  const NodeMap& node_map() const override { return base_.node_map(); }
  Runtime& runtime() override { return base_.runtime(); }
  absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                         absl::Duration timeout) override {
    return base_.AllGatherBlob(blob, timeout);
  }
  absl::StatusOr<NodeMemory> ReserveNodeMemory(size_t bytes) override {
    return base_.ReserveNodeMemory(bytes);
  }
  absl::StatusOr<FreeMemory> FreeNodeMemory() const override { return base_.FreeNodeMemory(); }
  absl::StatusOr<std::unique_ptr<WireLink>> OpenLink(absl::Duration timeout) override {
    return base_.OpenLink(timeout);
  }
  std::string TransportName() const override { return base_.TransportName(); }
  int64_t link_count() const override { return base_.link_count(); }
  void SkipLinks(int64_t count) override { base_.SkipLinks(count); }

 private:
  Bootstrap& base_;
};

}  // namespace weft::testing
