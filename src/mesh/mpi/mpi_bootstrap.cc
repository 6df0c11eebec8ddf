#include "weft/mesh/mpi_bootstrap.h"

#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "src/mesh/base/environment_options.h"
#include "src/mesh/host/anonymous_memory.h"
#include "src/mesh/host/node_memory_limits.h"
#include "src/mesh/mpi/mpi_blob_exchange.h"
#include "src/mesh/mpi/mpi_links.h"
#include "src/mesh/mpi/mpi_node_memory.h"
#include "src/mesh/mpi/mpi_session.h"
#include "src/mesh/tcp/tcp_endpoint.h"
#include "src/mesh/tcp/transport_choice.h"
#include "weft/core/status.h"
#include "weft/mesh/launch_environment.h"
#include "weft/mesh/share_domain.h"

namespace weft {
namespace {

using internal::MpiCommunicator;
using internal::MpiSession;
using internal::MpiSettings;
using internal::MpiSharedWindow;
using internal::MpiStatus;
using internal::TransportFacts;

// The place of a rank: the lowest rank of its node, and the NUMA node to which it is bound.
struct Place {
  int lowest = 0;
  int numa = NodeMap::kNotBound;
};

// Every rank publishes its place. Nodes are then numbered in the order of their lowest ranks.
absl::StatusOr<NodeMap> FindNodes(MpiSession& session, MPI_Comm world, int ranks, MPI_Comm node, int numa) {
  const internal::CallGuard::Scope call = session.Guard("MPI_Allgather of the nodes");
  int rank = 0;
  Place own{0, numa};
  MPI_Comm_rank(world, &rank);
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Allreduce(&rank, &own.lowest, 1, MPI_INT, MPI_MIN, node), "MPI_Allreduce"));
  std::vector<Place> places(static_cast<size_t>(ranks));
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Allgather(&own, 2, MPI_INT, places.data(), 2, MPI_INT, world), "MPI_Allgather"));
  NodeMap nodes;
  std::vector<int> number_of(places.size());  // Node number, indexed by the node's lowest rank.
  int count = 0;
  for (int other = 0; other < ranks; ++other) {
    const Place& place = places[static_cast<size_t>(other)];
    if (place.lowest == other) number_of[other] = count++;
    nodes.node_of_rank.push_back(number_of[place.lowest]);
    nodes.numa_of_rank.push_back(place.numa);
  }
  return nodes;
}

struct LauncherText {
  absl::string_view name;
  absl::string_view remedy;  // If the launcher's processes are not connected.
};

LauncherText TextOf(Launcher launcher) {
  switch (launcher) {
    case Launcher::kOpenMpi:
      return {"mpirun of Open MPI",
              "this program was built with another MPI library: use the mpiexec of that library"};
    case Launcher::kHydra:
      return {"mpiexec of MPICH or Intel MPI",
              "this program was built with another MPI library: use its mpirun"};
    case Launcher::kSlurm:
      return {"srun", "use srun --mpi=pmix"};
    case Launcher::kPmix:
    case Launcher::kNone:
      break;
  }
  return {"the launcher", "use the launcher of the MPI library that this program was built with"};
}

// If the launcher does not connect its processes, MPI starts each of them alone. They would all write the
// same files.
absl::Status CheckRankCount(int ranks) {
  const LaunchEnvironment environment = ReadLaunchEnvironment();
  if (environment.ranks.value_or(ranks) == ranks) return absl::OkStatus();
  const LauncherText launcher = TextOf(environment.launcher);
  return absl::InvalidArgumentError(absl::StrCat(launcher.name, " started ", *environment.ranks,
                                                 " processes, but MPI connects ", ranks,
                                                 " of them: ", launcher.remedy));
}

class MpiBootstrap : public Bootstrap {
 public:
  static absl::StatusOr<std::unique_ptr<Bootstrap>> Make(const MpiBootstrapOptions& options);
  // See Note [MPI teardown].
  ~MpiBootstrap() override;

  int rank() const override { return rank_; }
  const NodeMap& node_map() const override { return nodes_; }
  Runtime& runtime() override { return runtime_; }
  absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                         absl::Duration timeout) override {
    return blobs_->AllGather(blob, timeout);
  }
  absl::StatusOr<NodeMemory> ReserveNodeMemory(size_t segment_bytes) override;
  absl::StatusOr<FreeMemory> FreeNodeMemory() const override {
    if (node_comm_->size() == 1) return internal::FreeMemoryOfHost({});
    // A window is one file.
    return internal::FreeMemoryOfHost({.file_system = MpiSharedWindow::kBackingStore, .files = 1});
  }
  absl::StatusOr<std::unique_ptr<WireLink>> OpenLink(absl::Duration timeout) override {
    return links_->Open(timeout);
  }
  std::string TransportName() const override { return links_->TransportName(); }
  int64_t link_count() const override { return links_->count(); }
  void SkipLinks(int64_t count) override { links_->Skip(count); }

 private:
  MpiBootstrap(std::shared_ptr<MpiSession> session, MpiCommunicator world, MpiCommunicator node,
               NodeMap nodes, std::unique_ptr<internal::MpiBlobExchange> blobs)
      : session_(std::move(session)),
        world_(std::move(world)),
        node_comm_(std::move(node)),
        rank_(world_->rank()),
        nodes_(std::move(nodes)),
        blobs_(std::move(blobs)) {}

  absl::StatusOr<NodeMemory> ReservePrivate(size_t segment_bytes);
  absl::StatusOr<NodeMemory> ReserveShared(size_t segment_bytes);

  // Members are destroyed in reverse order: MPI is finalized after everything that uses it.
  std::shared_ptr<MpiSession> session_;
  std::optional<MpiCommunicator> world_;
  std::optional<MpiCommunicator> node_comm_;
  const int rank_;
  const NodeMap nodes_;
  SystemRuntime runtime_;
  std::unique_ptr<internal::MpiBlobExchange> blobs_;
  std::unique_ptr<internal::MpiLinks> links_;  // Null until the ranks have agreed on the transport.
  std::deque<MpiSharedWindow> windows_;
  std::deque<internal::AnonymousMemory> own_memory_;
};

constexpr const char* kTransportVariable = "WEFT_TRANSPORT";

absl::string_view NameOf(MpiTransport transport) {
  switch (transport) {
    case MpiTransport::kAuto:
      return "auto";
    case MpiTransport::kMpi:
      return "mpi";
    case MpiTransport::kTcp:
      break;
  }
  return "tcp";
}

absl::StatusOr<MpiTransport> TransportFromEnvironment() {
  const char* const text = std::getenv(kTransportVariable);
  if (text == nullptr || *text == '\0') return MpiTransport::kAuto;
  for (const MpiTransport transport : {MpiTransport::kAuto, MpiTransport::kMpi, MpiTransport::kTcp}) {
    if (text == NameOf(transport)) return transport;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(kTransportVariable, " is '", text, "': it must be auto, mpi or tcp"));
}

// The options that all ranks must have alike.
absl::StatusOr<std::vector<OptionValue>> SharedOptions(const MpiSession& session,
                                                       const MpiBootstrapOptions& options) {
  WEFT_RETURN_IF_ERROR(session.watchdog_status());
  WEFT_RETURN_IF_ERROR(options.error);
  if (options.transport == MpiTransport::kTcp)
    WEFT_RETURN_IF_ERROR(internal::TcpEndpoint::OfThisHost(options.network).status());
  return std::vector<OptionValue>{
      {"the transport", std::string(NameOf(options.transport)),
       absl::StrCat("set ", kTransportVariable, " or MpiBootstrapOptions::transport")}};
}

struct TransportChoice {
  MpiTransport transport;           // Not kAuto.
  std::string network = "";         // Of sockets: see StoreBootstrapOptions::network.
  std::string reason_for_mpi = "";  // Empty if there was no choice, and for sockets.
};

// Collective: all ranks of `bootstrap`.
absl::StatusOr<TransportChoice> ChooseTransport(Bootstrap& bootstrap, const MpiBootstrapOptions& options,
                                                const MpiSettings& settings) {
  if (options.transport != MpiTransport::kAuto) return TransportChoice{options.transport, options.network};
  if (bootstrap.node_map().node_count() == 1) return TransportChoice{MpiTransport::kMpi};
  absl::StatusOr<std::string> own;
  if (const auto facts = TransportFacts::OfThisHost(settings, options.network); facts.ok())
    own = facts->Encode();
  else
    own = facts.status();
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      ExchangeBlobs(bootstrap, "facts that decide the transport", own, options.startup_timeout));
  std::vector<TransportFacts> all;
  for (const std::string& text : texts) {
    WEFT_ASSIGN_OR_RETURN(TransportFacts facts, TransportFacts::Decode(text));
    all.push_back(std::move(facts));
  }
  std::string reason = internal::ReasonForMpi(bootstrap.node_map(), all);
  if (!reason.empty()) return TransportChoice{MpiTransport::kMpi, "", std::move(reason)};
  return TransportChoice{MpiTransport::kTcp, internal::NetworkOfSockets(settings, options.network)};
}

absl::StatusOr<std::unique_ptr<Bootstrap>> MpiBootstrap::Make(const MpiBootstrapOptions& options) {
  const MpiSettings settings = MpiSettings::Read(environ);
  WEFT_ASSIGN_OR_RETURN(auto session, MpiSession::Open(options));
  WEFT_ASSIGN_OR_RETURN(MpiCommunicator world, MpiCommunicator::Duplicate(*session, MPI_COMM_WORLD));
  WEFT_RETURN_IF_ERROR(CheckRankCount(world.size()));
  WEFT_ASSIGN_OR_RETURN(MpiCommunicator node, MpiCommunicator::SplitByNode(*session, world.get()));
  WEFT_ASSIGN_OR_RETURN(NodeMap nodes, FindNodes(*session, world.get(), world.size(), node.get(),
                                                 NumaNodeOrBinding(options.numa_node)));
  WEFT_ASSIGN_OR_RETURN(auto blobs,
                        internal::MpiBlobExchange::Create(session, world.get(), "all-gather of blobs"));
  std::unique_ptr<MpiBootstrap> bootstrap(
      new MpiBootstrap(session, std::move(world), std::move(node), std::move(nodes), std::move(blobs)));
  WEFT_RETURN_IF_ERROR(AgreeOnOptions(*bootstrap, "options of the bootstrap",
                                      SharedOptions(*session, options), options.startup_timeout));
  WEFT_ASSIGN_OR_RETURN(const TransportChoice choice, ChooseTransport(*bootstrap, options, settings));
  if (choice.transport == MpiTransport::kMpi) {
    bootstrap->links_ = internal::MakeLinksOverMpi(session, *bootstrap->world_, choice.reason_for_mpi);
  } else {
    WEFT_ASSIGN_OR_RETURN(bootstrap->links_,
                          internal::MakeLinksOverTcp(session, *bootstrap->world_, choice.network));
  }
  session->EndStartup();
  return bootstrap;
}

MpiBootstrap::~MpiBootstrap() {
  session_->EndIfPeersAreMissing();
  blobs_.reset();
  const internal::CallGuard::Scope call =
      session_->Guard("the end of the bootstrap (MPI_Win_free, MPI_Comm_free)");
  windows_.clear();
  links_.reset();
  node_comm_.reset();
  world_.reset();
}

absl::StatusOr<NodeMemory> MpiBootstrap::ReserveNodeMemory(size_t segment_bytes) {
  // Agree before the allocation, which would hang if one rank could not allocate.
  const absl::Status fits = internal::CheckReservation(FreeNodeMemory(), segment_bytes,
                                                       MpiSharedWindow::FootprintBytes(segment_bytes),
                                                       static_cast<size_t>(node_comm_->size()));
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(*this, fits, session_->timeout()));
  return node_comm_->size() == 1 ? ReservePrivate(segment_bytes) : ReserveShared(segment_bytes);
}

// A rank without local peers needs no shared window.
absl::StatusOr<NodeMemory> MpiBootstrap::ReservePrivate(size_t segment_bytes) {
  WEFT_ASSIGN_OR_RETURN(auto memory, internal::AnonymousMemory::Reserve(segment_bytes));
  own_memory_.push_back(std::move(memory));
  return NodeMemory{{{rank_, own_memory_.back().base()}}, segment_bytes, /*shared_between_processes=*/false};
}

absl::StatusOr<NodeMemory> MpiBootstrap::ReserveShared(size_t segment_bytes) {
  WEFT_ASSIGN_OR_RETURN(MpiSharedWindow window,
                        MpiSharedWindow::Allocate(*session_, node_comm_->get(), segment_bytes));
  windows_.push_back(std::move(window));
  NodeMemory memory{{}, segment_bytes, /*shared_between_processes=*/true};
  const std::vector<int> ranks = nodes_.RanksOf(node());
  for (size_t i = 0; i < ranks.size(); ++i)
    memory.segments.push_back({ranks[i], windows_.back().segments()[i]});
  return memory;
}

}  // namespace

MpiBootstrapOptions MpiBootstrapOptions::FromEnvironment() {
  MpiBootstrapOptions options;
  internal::TakeCommonOptions(options);
  internal::TakeOption(TransportFromEnvironment(), options, options.transport);
  return options;
}

absl::StatusOr<std::unique_ptr<Bootstrap>> MakeMpiBootstrap(const MpiBootstrapOptions& options) {
  return MpiBootstrap::Make(options);
}

absl::StatusOr<std::unique_ptr<Bootstrap>> MakeMpiBootstrap() {
  return MakeMpiBootstrap(MpiBootstrapOptions::FromEnvironment());
}

}  // namespace weft
