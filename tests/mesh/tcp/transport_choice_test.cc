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
using ::testing::Not;
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
    ASSERT_OK_AND_ASSIGN(const TransportFacts without, TransportFacts::OfThisHost({}, "", classes.str()));
    EXPECT_THAT(without.reason_for_mpi, Not(HasSubstr("device")));
    std::filesystem::create_directories(classes / device);
    // With a device, no network matters.
    ASSERT_OK_AND_ASSIGN(const TransportFacts with,
                         TransportFacts::OfThisHost({}, "no-such-device", classes.str()));
    EXPECT_EQ(with.reason_for_mpi, std::string("the device ") + device);
  }
  // Classes without a device: the driver is loaded alone.
  const TempFolder classes;
  for (const char* const driver : {"infiniband", "gni/version"})
    std::filesystem::create_directories(classes / driver);
  ASSERT_OK_AND_ASSIGN(const TransportFacts driver, TransportFacts::OfThisHost({}, "", classes.str()));
  EXPECT_THAT(driver.reason_for_mpi, Not(HasSubstr("device")));
}

// Without devices.
absl::StatusOr<TransportFacts> FactsOf(const MpiSettings& settings, const std::string& network) {
  const TempFolder no_devices;
  return TransportFacts::OfThisHost(settings, network, no_devices.str());
}

TEST(TransportFacts, HaveTheVariable) {
  ASSERT_OK_AND_ASSIGN(const TransportFacts facts, FactsOf({"UCX_TLS", ""}, ""));
  EXPECT_EQ(facts.reason_for_mpi, "the variable UCX_TLS");
}

TEST(TransportFacts, TheLoopbackInterfaceIsNoNetwork) {
  for (const MpiSettings& settings : {MpiSettings{"", "lo"}, MpiSettings{"", "no-such-device"}}) {
    ASSERT_OK_AND_ASSIGN(const TransportFacts facts, FactsOf(settings, "lo"));
    EXPECT_EQ(facts.reason_for_mpi, "the network 'lo', which leads to no other host,");
  }
  ASSERT_OK_AND_ASSIGN(const TransportFacts facts, FactsOf({"", "lo"}, ""));
  EXPECT_EQ(facts.reason_for_mpi, "the network 'lo', which leads to no other host,");
}

TEST(TransportFacts, ANetworkOfMpiThatIsNoInterfaceNeedsMpi) {
  for (const char* const network : {"10.0.0.0/8", "no-such-device"}) {
    ASSERT_OK_AND_ASSIGN(const TransportFacts facts, FactsOf({"", network}, ""));
    EXPECT_EQ(facts.reason_for_mpi, "the variable OMPI_MCA_btl_tcp_if_include");
  }
}

TEST(TransportFacts, ANetworkThatDoesNotExistIsAnError) {
  EXPECT_THAT(FactsOf({}, "no-such-device"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no-such-device")));
}

TEST(NetworkOfSockets, IsThatOfMpiIfNoneIsGiven) {
  EXPECT_EQ(NetworkOfSockets({"", "eth0"}, ""), "eth0");
  EXPECT_EQ(NetworkOfSockets({"", "eth0"}, "eth1"), "eth1");
}

TEST(MpiSettings, AreVariablesThatChooseATransportOrPorts) {
  for (const char* const assignment :
       {"OMPI_MCA_btl=tcp,self", "OMPI_MCA_btl_tcp_port_min_v4=5000", "OMPI_MCA_pml=ob1", "OMPI_MCA_mtl_x=1",
        "UCX_TLS=tcp", "FI_PROVIDER=tcp", "I_MPI_FABRICS=ofi", "MPIR_CVAR_PORTRANGE=1:2"}) {
    const std::string name = std::string(assignment).substr(0, std::string(assignment).find('='));
    const char* const environment[] = {"HOME=/", assignment, "UCX_NET_DEVICES=eth0", nullptr};
    EXPECT_EQ(MpiSettings::Read(environment).variable, name);
  }
  const char* const others[] = {"OMPI_MCA_btl_vader_single_copy_mechanism=none",
                                "OMPI_MCA_orte_num_nodes=2",
                                "OMPI_MCA_btl_tcp_if_include=eth0,eth1",
                                "UCX_LOG_LEVEL=info",
                                "FI_PROVIDER_PATH=/opt",
                                "WEFT_TRANSPORT=auto",
                                nullptr};
  EXPECT_EQ(MpiSettings::Read(others).variable, "");
  EXPECT_EQ(MpiSettings::Read(others).network, "eth0,eth1");
}

}  // namespace
}  // namespace weft::internal
