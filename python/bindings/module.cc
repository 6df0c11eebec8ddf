// The extension module weft._core.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <optional>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/time/time.h>

#include "python/bindings/array_collectives.h"
#include "python/bindings/errors.h"
#include "python/bindings/private_heap.h"
#include "python/bindings/python_store.h"
#include "python/bindings/session.h"
#include "python/bindings/sharding.h"
#include "weft/core/status.h"
#include "weft/mesh/key_value_store.h"
#include "weft/mesh/share_domain.h"
#include "weft/mesh/store_bootstrap.h"

namespace nb = nanobind;

namespace weft::python {
namespace {

// WEFT_WIRE_COMPRESSION: "none", "lossless", or unset.
absl::StatusOr<std::optional<WireCompression>> WireCompressionOfEnvironment() {
  const char* const variable = std::getenv("WEFT_WIRE_COMPRESSION");
  if (variable == nullptr) return std::nullopt;
  for (const WireCompression value : {WireCompression::kNone, WireCompression::kLossless}) {
    if (Name(value) == variable) return value;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("WEFT_WIRE_COMPRESSION must be none or lossless, not '", variable, "'"));
}

absl::StatusOr<std::shared_ptr<Session>> MakeSession(std::shared_ptr<KeyValueStore> store, int rank, int size,
                                                     SessionOptions options, absl::Status error) {
  const auto environment = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const absl::StatusOr<std::optional<int>> numa_node = NumaNodeFromEnvironment();
  const absl::StatusOr<std::optional<WireCompression>> compression = WireCompressionOfEnvironment();
  error.Update(numa_node.status());  // All ranks return it: see StoreBootstrapOptions.
  error.Update(compression.status());
  options.wire_compression = compression.value_or(std::nullopt);
  const StoreBootstrapOptions bootstrap_options{.rank = rank,
                                                .size = size,
                                                .startup_timeout = options.timeout,
                                                .timeout = options.timeout,
                                                .node_id = environment("WEFT_NODE_ID"),
                                                .numa_node = numa_node.value_or(std::nullopt),
                                                .network = environment("WEFT_NETWORK"),
                                                .error = error};
  WEFT_ASSIGN_OR_RETURN(auto bootstrap, MakeStoreBootstrap(store, bootstrap_options));
  return Session::Create(std::move(store), std::move(bootstrap), options);
}

// Nothing if the object is no path: str, bytes or os.PathLike.
std::optional<std::string> PathOf(const nb::object& object) {
  try {
    const auto path = nb::cast<nb::bytes>(nb::module_::import_("os").attr("fsencode")(object));
    return std::string(path.c_str(), path.size());
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    return std::nullopt;
  }
}

// `store`: an object with the methods of a KeyValueStore, or a folder. A proxy that has every attribute is a
// store.
std::shared_ptr<InterruptibleStore> OpenStore(nb::object store) {
  constexpr std::array kMethods = {"set", "get_all", "delete"};
  const auto* const missing = std::find_if(kMethods.begin(), kMethods.end(),
                                           [&](const char* method) { return !nb::hasattr(store, method); });
  if (missing == kMethods.end()) return std::make_shared<PythonStore>(std::move(store));
  if (const auto path = PathOf(store)) {
    return std::make_shared<SignalCheckedStore>(ValueOrRaise(OpenFileStore(*path)));
  }
  throw nb::type_error(absl::StrCat("store must be a folder or a KeyValueStore, but the given ",
                                    nb::type_name(store.type()).c_str(), " has no method ", *missing)
                           .c_str());
}

std::shared_ptr<Session> CreateSession(nb::object store, int rank, int size, double timeout_s,
                                       size_t segment_bytes, const std::string& error) {
  const std::shared_ptr<InterruptibleStore> shared_store = OpenStore(std::move(store));
  const SessionOptions options{.timeout = absl::Seconds(timeout_s), .segment_bytes = segment_bytes};
  absl::StatusOr<std::shared_ptr<Session>> session;
  {
    const nb::gil_scoped_release released;
    session = MakeSession(shared_store, rank, size, options,
                          error.empty() ? absl::OkStatus() : absl::InvalidArgumentError(error));
  }
  shared_store->RethrowPending();
  return ValueOrRaise(std::move(session));
}

void ResetSession(Session& session) {
  absl::Status status;
  {
    const Session::OwnCall own_call;  // A signal handler that runs in it must not close the session.
    const nb::gil_scoped_release released;
    status = session.Reset();
  }
  RethrowPendingOf(session.store());
  if (!status.ok()) Raise(status);
}

using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

// A numpy array of bytes in node memory. The array holds the block.
Bytes AllocateBytes(const Session& session, size_t bytes) {
  auto block = ValueOrRaise(session.Allocate(bytes));
  std::byte* const data = block.get();
  const nb::capsule owner(new std::shared_ptr<std::byte>(std::move(block)),
                          [](void* held) noexcept { delete static_cast<std::shared_ptr<std::byte>*>(held); });
  return Bytes(data, {bytes}, owner);
}

nb::dict Counters(const Session& session) {
  EngineCounters counters;
  const absl::Status open =
      session.WithEngine([&](const CommEngine& engine) { counters = engine.counters(); });
  if (!open.ok()) Raise(open);
  nb::dict named;
  named["all_gather_bytes"] = counters.all_gather_bytes;
  named["reduce_scatter_bytes"] = counters.reduce_scatter_bytes;
  named["all_reduce_bytes"] = counters.all_reduce_bytes;
  named["control_bytes"] = counters.control_bytes;
  named["wire_bytes"] = counters.wire_bytes;
  named["wire_messages"] = counters.wire_messages;
  named["wire_saved_bytes"] = counters.wire_saved_bytes;
  named["cross_domain_bytes"] = counters.cross_domain_bytes;
  named["copied_bytes"] = counters.copied_bytes;
  named["operations"] = counters.operations;
  named["wait_ns"] = counters.wait_ns;
  return named;
}

}  // namespace

NB_MODULE(_core, module) {
  // Programs leave objects behind when the interpreter ends, such as process groups that were not destroyed.
  nb::set_leak_warnings(false);
  module.doc() = "weft's engine and node memory. Use it through the package weft.";
  nb::class_<Session>(
      module, "Session",
      "Bootstrap, node memory and communication engine of this process.\n"
      "\n"
      "Any thread may use a session. It belongs to the process that created it: a forked child "
      "may not use it.")
      .def(nb::new_(&CreateSession), nb::arg("store"), nb::arg("rank"), nb::arg("size"),
           nb::arg("timeout_s") = 600.0, nb::arg("segment_bytes") = 0, nb::arg("error") = "",
           "Creates the session. Collective: all ranks.\n"
           "\n"
           "`store` is a key-value store, or a folder that all ranks share, an empty one for each job. "
           "`timeout_s` bounds start-up\n"
           "and every wait that names no timeout. `segment_bytes` is the node memory that the rank reserves; "
           "0: its share of what\n"
           "is free. WEFT_NODE_ID, WEFT_NUMA_NODE and WEFT_NETWORK of the environment choose node, NUMA node "
           "and network.\n"
           "WEFT_SHARE_DOMAIN, auto, node, numa or none, chooses the ranks that share images. "
           "WEFT_WIRE_COMPRESSION, none or\n"
           "lossless, chooses whether floats are compressed between nodes; if it is unset, a measurement "
           "does. `error` is an\n"
           "error of this rank's options that the caller has found: every rank raises it.\n"
           "\n"
           "Raises ValueError (rank or size out of range; `error` of some rank), TimeoutError (names the "
           "ranks that did not\n"
           "start), MemoryError.")
      .def("close", &Session::Close, nb::call_guard<nb::gil_scoped_release>(),
           "Ends the engine. Waits up to ten seconds for unfinished operations, which then fail. Arrays "
           "stay valid.")
      .def("abort", &Session::Abort, nb::arg("cause"), nb::call_guard<nb::gil_scoped_release>(),
           "Fails all unfinished operations of all groups, on all ranks.")
      .def("reset", &ResetSession,
           "Recovers from a failure: unfinished operations fail, and all groups take operations again. "
           "Collective: all ranks.\n"
           "\n"
           "No other thread may use the session meanwhile. weft.reset also resets sharded models.\n"
           "\n"
           "Raises TimeoutError (names the ranks that did not call it), RuntimeError (closed; a forked "
           "child).")
      .def_prop_ro(
          "closed", &Session::closed,
          "True if the session is closed, or is being closed: it takes no more operations.\n"
          "\n"
          "Memory of operations that the end has failed may be used again once close() has returned.")
      .def_prop_ro("rank", &Session::rank, "This process's rank in the session.")
      .def_prop_ro("size", &Session::size, "Number of ranks of the session.")
      .def_prop_ro("nonce", &Session::nonce,
                   "A text that is the same on all ranks, and different for each session of a store.")
      .def_prop_ro(
          "allocated_bytes", [](const Session& self) { return self.heap().allocated_bytes(); },
          "Bytes of node memory in use by this rank.")
      .def("allocate_bytes", &AllocateBytes, nb::arg("bytes"),
           "Returns `bytes` bytes of node memory with undefined contents, 64-byte aligned. The array "
           "keeps the memory.\n"
           "\n"
           "Raises MemoryError (no room; has the free bytes), RuntimeError (closed; a forked child).")
      .def("counters", &Counters,
           "Totals of the engine: bytes by kind of collective, bytes copied and sent to other nodes, "
           "operations, and\n"
           "nanoseconds in waits.");
  BindArrayCollectives(module);
  BindPrivateHeap(module);
  BindSharding(module);
  module.def("close_all", &Session::CloseAll, nb::call_guard<nb::gil_scoped_release>(),
             "Closes all sessions of this process.");
}

}  // namespace weft::python
