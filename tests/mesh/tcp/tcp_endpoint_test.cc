#include "src/mesh/tcp/tcp_endpoint.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::StatusIs;

TcpEndpoint EndpointOf(const std::string& host, const std::vector<TcpEndpoint::Interface>& interfaces) {
  return {"token", host, 1234, interfaces};
}

TEST(TcpEndpoint, IsTheSameAfterEncodingAndDecoding) {
  const TcpEndpoint endpoint =
      EndpointOf("boot/net", {{"eth0", "10.0.0.1", 24}, {"odd,name", "fd00::1", 64}});
  ASSERT_OK_AND_ASSIGN(const TcpEndpoint decoded, TcpEndpoint::Decode(endpoint.Encode()));
  EXPECT_EQ(decoded.Encode(), endpoint.Encode());
  EXPECT_EQ(decoded.port, 1234);
  EXPECT_EQ(decoded.interfaces.back().name, "odd,name");
  for (const char* text : {"", "token", "token host", "token host port", "token host 1 eth0,10.0.0.1"})
    EXPECT_EQ(TcpEndpoint::Decode(text).status().code(), absl::StatusCode::kInternal) << text;
}

TEST(TcpEndpoint, SharedNetworksComeFirst) {
  const TcpEndpoint own = EndpointOf("a", {{"eth0", "10.0.0.1", 24}, {"eth1", "192.168.7.1", 20}});
  const TcpEndpoint peer = EndpointOf("b", {{"public", "8.8.8.8", 24},
                                            {"eth0", "10.0.1.2", 24},
                                            {"eth1", "192.168.15.9", 20},
                                            {"x", "fd00::2", 64}});
  EXPECT_THAT(RoutesTo(own, peer), ElementsAre("192.168.15.9", "8.8.8.8", "10.0.1.2", "fd00::2"));
}

TEST(TcpEndpoint, TheLoopbackInterfaceServesOneHostOnly) {
  const std::vector<TcpEndpoint::Interface> interfaces = {{"eth0", "10.0.0.1", 24}};
  EXPECT_THAT(RoutesTo(EndpointOf("a", interfaces), EndpointOf("a", interfaces)),
              ElementsAre("127.0.0.1", "10.0.0.1"));
  EXPECT_THAT(RoutesTo(EndpointOf("a", {}), EndpointOf("a", {})), ElementsAre("127.0.0.1"));
  EXPECT_THAT(RoutesTo(EndpointOf("a", {}), EndpointOf("b", {})), IsEmpty());
}

// Container software gives its bridge the same address on every host.
TEST(TcpEndpoint, AnAddressOfBothHostsIsNoRoute) {
  const TcpEndpoint own = EndpointOf("a", {{"docker0", "172.17.0.1", 16}, {"eth0", "10.0.0.1", 24}});
  const TcpEndpoint peer = EndpointOf("b", {{"docker0", "172.17.0.1", 16}, {"eth0", "10.0.0.2", 24}});
  EXPECT_THAT(RoutesTo(own, peer), ElementsAre("10.0.0.2"));
}

// The bridge is on two of three hosts.
TEST(TcpEndpoint, AnAddressOfSeveralHostsComesLast) {
  std::vector<TcpEndpoint> endpoints = {
      EndpointOf("a", {{"docker0", "172.17.0.1", 16}, {"eth0", "10.0.1.1", 24}}),
      EndpointOf("b", {{"docker0", "172.17.0.1", 16}, {"eth0", "10.0.2.1", 24}}),
      EndpointOf("b", {{"docker0", "172.17.0.1", 16}, {"eth0", "10.0.2.1", 24}}),
      EndpointOf("c", {{"eth0", "172.17.0.9", 16}, {"eth1", "10.0.3.1", 24}}),
  };
  FindSharedAddresses(endpoints);
  EXPECT_THAT(RoutesTo(endpoints[3], endpoints[0]), ElementsAre("10.0.1.1", "172.17.0.1"));
  EXPECT_THAT(RoutesTo(endpoints[1], endpoints[2]), ElementsAre("127.0.0.1", "10.0.2.1", "172.17.0.1"));
}

TEST(TcpEndpoint, NamesAnInterfaceThatDoesNotExist) {
  for (const char* const network : {"lo", "lo,", " lo, lo"}) EXPECT_OK(TcpEndpoint::OfThisHost(network));
  EXPECT_THAT(
      TcpEndpoint::OfThisHost("lo,no-such"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("'no-such'"), HasSubstr("WEFT_NETWORK"), HasSubstr("lo (127.0.0.1)"))));
}

}  // namespace
}  // namespace weft::internal
