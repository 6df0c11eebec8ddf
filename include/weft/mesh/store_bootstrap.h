// Bootstrap over a key-value store: each rank is a process that any launcher started, such as torchrun. Needs
// no MPI.
//
// The ranks of a node share memory that has no name in a file system, so that nothing is left behind however
// a rank ends. Ranks of different nodes exchange messages over TCP sockets.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/mesh/bootstrap.h"
#include "weft/mesh/key_value_store.h"

namespace weft {

struct StoreBootstrapOptions {
  int rank = 0;
  int size = 1;
  // Limit of start-up. Includes the time that the ranks need to start one after the other.
  absl::Duration startup_timeout = absl::Seconds(300);
  // Limit of ReserveNodeMemory. The other collectives have a timeout of their own.
  absl::Duration timeout = absl::Seconds(600);
  // Start of all keys. Bootstraps that exist at the same time on one store need different prefixes.
  std::string prefix = "weft";
  // Name of this rank's node. Ranks with equal names share memory. Empty: the host name, the boot of the
  // kernel and the process namespace tell nodes apart.
  std::string node_id;
  // NUMA node that this rank counts as bound to. Unset: that of its affinity.
  std::optional<int> numa_node = std::nullopt;
  // Interfaces for messages between nodes, separated by commas, such as "eth0" or "ib0" (IP over InfiniBand).
  // Empty: any that a peer can reach; those of a network that both hosts are part of come first.
  std::string network;
  // Error of this rank's options. MakeStoreBootstrap returns it on every rank: none waits for this one.
  absl::Status error = absl::OkStatus();

  // Reads the rank and the number of ranks from RANK and WORLD_SIZE, which torchrun sets, and the rest from
  // WEFT_STARTUP_TIMEOUT_S, WEFT_TIMEOUT_S, WEFT_NODE_ID, WEFT_NUMA_NODE and WEFT_NETWORK, where they are
  // set. If one of these is invalid, sets `error`, which names it.
  // Errors: kInvalidArgument (RANK or WORLD_SIZE is missing or not a number; names it).
  static absl::StatusOr<StoreBootstrapOptions> FromEnvironment();
};

// Creates the bootstrap of this process.
//
// Several bootstraps may follow each other on one store with one prefix: each rank counts its own. After a
// start that some ranks have missed, the counts differ: use an empty store, or another prefix.
//
// Collective: all ranks, with the same size and prefix.
// Lifetime: the destructor does not wait for other ranks, and leaves a few small keys in the store. The store
//   must stay reachable until all ranks have destroyed their bootstraps. Links may outlive the bootstrap;
//   node memory may not. A child process of fork() may not use the bootstrap and its links; if it destroys
//   its copies, those of the parent stay intact.
// Errors: kInvalidArgument (rank or size out of range; ranks disagree about the size; the error of some
//   rank's options), kDeadlineExceeded (names the ranks that did not start), and those of the store.
absl::StatusOr<std::unique_ptr<Bootstrap>> MakeStoreBootstrap(const std::shared_ptr<KeyValueStore>& store,
                                                              const StoreBootstrapOptions& options);

}  // namespace weft
