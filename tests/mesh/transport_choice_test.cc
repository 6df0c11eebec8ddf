#include "src/mesh/tcp/transport_choice.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace weft::internal {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

using Interfaces = std::vector<TcpEndpoint::Interface>;

TransportFacts HostOf(const std::string& name, const Interfaces& interfaces) {
  return {"", {"token", name, 0, interfaces}};
}

const Interfaces kFirst = {{"eth0", "10.0.0.1", 24}};
const Interfaces kSecond = {{"eth0", "10.0.0.2", 24}};
const NodeMap kTwoNodes = NodeMap::RanksPerNode(2, 1);

TEST(TransportChoice, HostsWithOneNetworkUseSockets) {
  EXPECT_EQ(ReasonForMpi(kTwoNodes, {HostOf("a", kFirst), HostOf("b", kSecond)}), "");
  EXPECT_EQ(ReasonForMpi(NodeMap::RanksPerNode(4, 2), {HostOf("a", kFirst), HostOf("a", kFirst),
                                                       HostOf("b", kSecond), HostOf("b", kSecond)}),
            "");
}

TEST(TransportChoice, AnInterfaceMayHaveSeveralAddresses) {
  const Interfaces both = {{"eth0", "10.0.0.1", 24}, {"eth0", "fd00::1", 64}};
  EXPECT_EQ(ReasonForMpi(kTwoNodes, {HostOf("a", both), HostOf("b", kSecond)}), "");
}

TEST(TransportChoice, SeveralNetworksNeedMpi) {
  const Interfaces two = {{"ib0", "10.1.0.2", 24}, {"eth0", "10.0.0.2", 24}};
  EXPECT_EQ(ReasonForMpi(kTwoNodes, {HostOf("a", kFirst), HostOf("b", two)}),
            "several networks (eth0, ib0) on the host of rank 1");
}

TEST(TransportChoice, AHostWithoutNetworkNeedsMpi) {
  EXPECT_EQ(ReasonForMpi(kTwoNodes, {HostOf("a", {}), HostOf("b", kSecond)}),
            "the lack of a network on the host of rank 0");
}

// Container software gives its bridge the same address on every host.
TEST(TransportChoice, AnAddressOfSeveralHostsIsNoNetwork) {
  const TcpEndpoint::Interface bridge = {"docker0", "172.17.0.1", 16};
  Interfaces first = kFirst;
  Interfaces second = kSecond;
  first.push_back(bridge);
  second.push_back(bridge);
  EXPECT_EQ(ReasonForMpi(kTwoNodes, {HostOf("a", first), HostOf("b", second)}), "");
  EXPECT_EQ(ReasonForMpi(kTwoNodes, {HostOf("a", {bridge}), HostOf("b", {bridge})}),
            "the lack of a network on the host of rank 0");
}

TEST(TransportChoice, NodesOnOneHostNeedMpi) {
  EXPECT_EQ(ReasonForMpi(NodeMap::RanksPerNode(3, 1),
                         {HostOf("a", kFirst), HostOf("b", kSecond), HostOf("a", kFirst)}),
            "two nodes on the host of rank 2");
}

TEST(TransportChoice, TheReasonOfOneRankCounts) {
  EXPECT_EQ(ReasonForMpi(kTwoNodes, {HostOf("a", kFirst), {"the device cxi/cxi0", {}}}),
            "the device cxi/cxi0 on the host of rank 1");
}

TEST(TransportFacts, AreTheSameAfterEncodingAndDecoding) {
  const TransportFacts host = HostOf("boot/net", kFirst);
  ASSERT_OK_AND_ASSIGN(const TransportFacts decoded, TransportFacts::Decode(host.Encode()));
  EXPECT_EQ(decoded.reason_for_mpi, "");
  EXPECT_EQ(decoded.endpoint.Encode(), host.endpoint.Encode());
  const TransportFacts reason{"the variable UCX_TLS", {}};
  ASSERT_OK_AND_ASSIGN(const TransportFacts same, TransportFacts::Decode(reason.Encode()));
  EXPECT_EQ(same.reason_for_mpi, reason.reason_for_mpi);
  EXPECT_THAT(TransportFacts::Decode("\nan older version"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("is no address of a link")));
}

TEST(TransportFacts, HaveADeviceForRdma) {
  for (const char* const device : {"infiniband/mlx5_0", "cxi/cxi0", "gni/kgni0"}) {
    const TempFolder classes;
    ASSERT_OK_AND_ASSIGN(const TransportFacts without, ReadTransportFacts("", "", classes.str()));
    EXPECT_EQ(without.reason_for_mpi, "");
    EXPECT_NE(without.endpoint.host, "");
    std::filesystem::create_directories(classes / device);
    // With a device, no network matters.
    ASSERT_OK_AND_ASSIGN(const TransportFacts with, ReadTransportFacts("", "no-such-device", classes.str()));
    EXPECT_EQ(with.reason_for_mpi, std::string("the device ") + device);
  }
  // Classes without a device: the driver is loaded alone.
  const TempFolder classes;
  for (const char* const driver : {"infiniband", "gni/version"})
    std::filesystem::create_directories(classes / driver);
  ASSERT_OK_AND_ASSIGN(const TransportFacts driver, ReadTransportFacts("", "", classes.str()));
  EXPECT_EQ(driver.reason_for_mpi, "");
}

TEST(TransportFacts, HaveTheVariable) {
  const TempFolder no_devices;
  ASSERT_OK_AND_ASSIGN(const TransportFacts facts, ReadTransportFacts("UCX_TLS", "", no_devices.str()));
  EXPECT_EQ(facts.reason_for_mpi, "the variable UCX_TLS");
}

TEST(TransportFacts, ANetworkThatDoesNotExistIsAnError) {
  const TempFolder no_devices;
  EXPECT_THAT(ReadTransportFacts("", "no-such-device", no_devices.str()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no-such-device")));
}

TEST(TransportVariable, IsOneThatChoosesATransportANetworkOrPorts) {
  for (const char* const assignment :
       {"OMPI_MCA_btl=tcp,self", "OMPI_MCA_btl_tcp_if_include=eth0", "OMPI_MCA_pml=ob1", "OMPI_MCA_mtl_x=1",
        "UCX_TLS=tcp", "FI_PROVIDER=tcp", "I_MPI_FABRICS=ofi", "MPICH_PORT_RANGE=1:2"}) {
    const std::string name = std::string(assignment).substr(0, std::string(assignment).find('='));
    const char* const environment[] = {"HOME=/", assignment, nullptr};
    EXPECT_EQ(TransportVariable(environment), name);
  }
  const char* const others[] = {"OMPI_MCA_btl_vader_single_copy_mechanism=none",
                                "OMPI_MCA_orte_num_nodes=2",
                                "UCX_LOG_LEVEL=info",
                                "FI_PROVIDER_PATH=/opt",
                                "WEFT_TRANSPORT=auto",
                                nullptr};
  EXPECT_EQ(TransportVariable(others), "");
}

}  // namespace
}  // namespace weft::internal
