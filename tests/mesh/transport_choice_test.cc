#include "src/mesh/tcp/transport_choice.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scoped_variable.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace weft::internal {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::ScopedVariable;
using ::weft::testing::StatusIs;

using Interfaces = std::vector<TcpEndpoint::Interface>;

HostNetworks HostOf(const std::string& name, const Interfaces& interfaces) {
  HostNetworks host;
  host.endpoint = {"token", name, 0, interfaces};
  return host;
}

const Interfaces kFirst = {{"eth0", "10.0.0.1", 24}};
const Interfaces kSecond = {{"eth0", "10.0.0.2", 24}};
const NodeMap kTwoNodes = NodeMap::RanksPerNode(2, 1);

TEST(TransportChoice, HostsWithOneNetworkUseSockets) {
  EXPECT_EQ(WhyMpi(kTwoNodes, {HostOf("a", kFirst), HostOf("b", kSecond)}), "");
  EXPECT_EQ(WhyMpi(NodeMap::RanksPerNode(4, 2),
                   {HostOf("a", kFirst), HostOf("a", kFirst), HostOf("b", kSecond), HostOf("b", kSecond)}),
            "");
}

TEST(TransportChoice, AnInterfaceMayHaveSeveralAddresses) {
  const Interfaces both = {{"eth0", "10.0.0.1", 24}, {"eth0", "fd00::1", 64}};
  EXPECT_EQ(WhyMpi(kTwoNodes, {HostOf("a", both), HostOf("b", kSecond)}), "");
}

TEST(TransportChoice, SeveralNetworksNeedMpi) {
  const Interfaces two = {{"ib0", "10.1.0.2", 24}, {"eth0", "10.0.0.2", 24}};
  EXPECT_EQ(WhyMpi(kTwoNodes, {HostOf("a", kFirst), HostOf("b", two)}),
            "the host of rank 1 has several networks (eth0, ib0)");
}

TEST(TransportChoice, AHostWithoutNetworkNeedsMpi) {
  EXPECT_EQ(WhyMpi(kTwoNodes, {HostOf("a", {}), HostOf("b", kSecond)}), "the host of rank 0 has no network");
}

// Container software gives its bridge the same address on every host.
TEST(TransportChoice, AnAddressOfSeveralHostsIsNoNetwork) {
  const TcpEndpoint::Interface bridge = {"docker0", "172.17.0.1", 16};
  Interfaces first = kFirst;
  Interfaces second = kSecond;
  first.push_back(bridge);
  second.push_back(bridge);
  EXPECT_EQ(WhyMpi(kTwoNodes, {HostOf("a", first), HostOf("b", second)}), "");
  EXPECT_EQ(WhyMpi(kTwoNodes, {HostOf("a", {bridge}), HostOf("b", {bridge})}),
            "the host of rank 0 has no network");
}

TEST(TransportChoice, NodesOnOneHostNeedMpi) {
  EXPECT_EQ(
      WhyMpi(NodeMap::RanksPerNode(3, 1), {HostOf("a", kFirst), HostOf("b", kSecond), HostOf("a", kFirst)}),
      "ranks 0 and 2 are of two nodes on one host");
}

TEST(TransportChoice, ADeviceOrAVariableOfOneRankNeedsMpi) {
  HostNetworks second = HostOf("b", kSecond);
  second.variable = "UCX_TLS";
  EXPECT_EQ(WhyMpi(kTwoNodes, {HostOf("a", kFirst), second}), "UCX_TLS is set on rank 1");
  second.device = "cxi/cxi0";
  EXPECT_EQ(WhyMpi(kTwoNodes, {HostOf("a", kFirst), second}), "the host of rank 1 has the device cxi/cxi0");
}

TEST(HostNetworks, AreTheSameAfterEncodingAndDecoding) {
  HostNetworks host = HostOf("boot/net", kFirst);
  ASSERT_OK_AND_ASSIGN(const HostNetworks plain, HostNetworks::Decode(host.Encode()));
  EXPECT_EQ(plain.Encode(), host.Encode());
  host.device = "infiniband/mlx5_0";
  host.variable = "UCX_TLS";
  ASSERT_OK_AND_ASSIGN(const HostNetworks decoded, HostNetworks::Decode(host.Encode()));
  EXPECT_EQ(decoded.device, host.device);
  EXPECT_EQ(decoded.variable, host.variable);
  EXPECT_EQ(decoded.endpoint.Encode(), host.endpoint.Encode());
  EXPECT_THAT(HostNetworks::Decode("an older version"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("is no address of a link")));
  EXPECT_THAT(HostNetworks::Decode(""),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("is no address of a link")));
}

TEST(HostNetworks, NameADeviceForRdma) {
  for (const char* const device : {"infiniband/mlx5_0", "cxi/cxi0"}) {
    const TempFolder classes;
    ASSERT_OK_AND_ASSIGN(const HostNetworks without, HostNetworks::OfThisHost("", classes.str()));
    EXPECT_EQ(without.device, "");
    std::filesystem::create_directories(classes / device);
    ASSERT_OK_AND_ASSIGN(const HostNetworks with, HostNetworks::OfThisHost("", classes.str()));
    EXPECT_EQ(with.device, device);
  }
  // The class exists without a device where only the driver is loaded.
  const TempFolder classes;
  std::filesystem::create_directories(classes / "infiniband");
  ASSERT_OK_AND_ASSIGN(const HostNetworks driver, HostNetworks::OfThisHost("", classes.str()));
  EXPECT_EQ(driver.device, "");
}

TEST(HostNetworks, NameAVariableThatChoosesTheTransportOfMpi) {
  ASSERT_OK_AND_ASSIGN(const HostNetworks before, HostNetworks::OfThisHost(""));
  ASSERT_EQ(before.variable, "") << "unset it for this test";
  for (const char* const name : {"OMPI_MCA_btl", "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_pml",
                                 "OMPI_MCA_pml_ob1_verbose", "UCX_TLS", "FI_PROVIDER", "I_MPI_FABRICS"}) {
    const ScopedVariable variable(name, "x");
    ASSERT_OK_AND_ASSIGN(const HostNetworks host, HostNetworks::OfThisHost(""));
    EXPECT_EQ(host.variable, name);
  }
  for (const char* const name :
       {"OMPI_MCA_btl_vader_single_copy_mechanism", "OMPI_MCA_orte_num_nodes", "UCX", "WEFT_TRANSPORT"}) {
    const ScopedVariable variable(name, "x");
    ASSERT_OK_AND_ASSIGN(const HostNetworks host, HostNetworks::OfThisHost(""));
    EXPECT_EQ(host.variable, "") << name;
  }
}

TEST(HostNetworks, ANetworkThatDoesNotExistIsAnError) {
  EXPECT_THAT(HostNetworks::OfThisHost("no-such-device"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no-such-device")));
}

}  // namespace
}  // namespace weft::internal
