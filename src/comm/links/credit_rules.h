// Rules of the protocols between ranks that tests break.
#pragma once

namespace weft {

// Each rule holds unless a test breaks it on purpose, to show that a violation is detected. See Note
// [Credits] and Note [Messages].
struct CreditRules {
  bool head_always_has_credit = true;
  // A small collective sends its partial sum up the tree once those of its children have arrived.
  bool partials_await_children = true;
  // A rank that learns of a failure tells its neighbors. See Note [Node graphs].
  bool failures_are_relayed = true;
  // A sender of a point-to-point message overwrites a staged piece only once the receiver has copied it.
  bool staged_pieces_await_receiver = true;
  // See Note [Domain sums]: a producer writes a slot of the ring of a reader's own part once the reader has
  // reduced what was in it, and a reader reads a sum once its producer has written it.
  bool domain_rings_await_reader = true;
  bool domain_readers_await_sums = true;
  // Slices that run ahead of a silent peer leave half of the budget to others. See Note [Silent peers].
  bool slices_run_ahead_in_half_of_budget = true;
  // A run is received once all of its slots in the ring may be overwritten. See Note [Runs of slices].
  bool runs_await_their_slots = true;
  // A message of a relayed exchange is sent once those of earlier rounds have arrived. See Note [Relayed
  // exchanges].
  bool rounds_await_earlier_ones = true;
};

}  // namespace weft
