// Two links over TCP in one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "src/mesh/tcp/tcp_endpoint.h"
#include "src/mesh/tcp/tcp_link.h"
#include "tests/support/status_matchers.h"
#include "weft/core/status.h"

namespace weft::testing {

struct TcpLinkPair {
  std::unique_ptr<internal::TcpLink> first;   // Rank 0.
  std::unique_ptr<internal::TcpLink> second;  // Rank 1.

  // `runtime`: the clock of both.
  static absl::StatusOr<TcpLinkPair> Make(const Runtime& runtime = SystemClock()) {
    TcpLinkPair pair;
    WEFT_ASSIGN_OR_RETURN(pair.first, internal::TcpLink::Listen(0, "", runtime));
    WEFT_ASSIGN_OR_RETURN(pair.second, internal::TcpLink::Listen(1, "", runtime));
    const std::vector<internal::TcpEndpoint> endpoints = {pair.first->endpoint(), pair.second->endpoint()};
    pair.first->SetPeers(endpoints);
    pair.second->SetPeers(endpoints);
    return pair;
  }
  void Poll() const {
    EXPECT_OK(first->Poll());
    EXPECT_OK(second->Poll());
  }
  // Polls until all connections that have been started are made.
  void FinishConnections() const {
    for (int i = 0; i < kManyPolls; ++i) {
      if (first->DescribeUnanswered().empty() && second->DescribeUnanswered().empty()) return;
      Poll();
    }
    ADD_FAILURE() << first->DescribeUnanswered() << second->DescribeUnanswered();
  }
  absl::Status Finish(internal::TcpLink& link, WireLink::RequestId request) const {
    for (int i = 0; i < kManyPolls; ++i) {
      Poll();
      WEFT_ASSIGN_OR_RETURN(const bool done, link.Test(request));
      if (done) return absl::OkStatus();
    }
    return absl::DeadlineExceededError("a message did not arrive");
  }
  // Sends a value from rank 0 to rank 1.
  absl::StatusOr<int64_t> Exchange(int64_t value) const {
    int64_t received = -1;
    WEFT_ASSIGN_OR_RETURN(const auto receive, second->Receive(0, 7, &received, 8, WireLink::Length::kExact));
    WEFT_ASSIGN_OR_RETURN(const auto send, first->Send(1, 7, &value, 8));
    WEFT_RETURN_IF_ERROR(Finish(*second, receive));
    WEFT_RETURN_IF_ERROR(Finish(*first, send));
    return received;
  }

 private:
  static constexpr int kManyPolls = 10'000'000;
  static const Runtime& SystemClock() {
    static const SystemRuntime runtime;
    return runtime;
  }
};

}  // namespace weft::testing
