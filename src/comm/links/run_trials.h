// Runs of slices: the rules, and trials that tell whether slices should travel in runs.
//
// Note [Runs of slices]
// Problem: a message takes some 10 us of CPU time, for its credit, MPI, and the polls that find both. On a
// link of 25 Gbit/s and more, that is as long as a slice takes on the wire. Larger slices would have to be
// agreed on before an operation starts, and lose over TCP, where MPI sends a slice eagerly.
// Rule: one credit is for a *run*: slices that lie end to end at both ranks and travel as one message. The
// receiver chooses the length and says it in the credit.
//   - A run has at most what the link brings in 0.1 ms (Note [Wire budget]), max_run_bytes, half of what is
//     left of its stream, and a quarter of its receive ring and of the yield window if that applies: MPI
//     sends several messages at the same time, so that their slices arrive together. If that is less than
//     kFewestInRun slices, as for slices of 60 KiB on links up to 20 Gbit/s, slices travel alone.
//   - Over a link without a rendezvous protocol, as TCP sockets, a run takes up to 0.25 ms, and slices travel
//     alone only up to 8 Gbit/s: long messages cost nothing there. Over MPI's TCP, a message of more than
//     64 KiB waits for an answer of its receiver.
//   - From 12 Gbit/s on (5 Gbit/s without a rendezvous protocol), runs of kFewestInRun are tried, and take up
//     to 0.17 ms (0.4 ms) (Note [Trials of runs]). Lower priorities do not try them while a higher one wants
//     the wire.
//   - If a whole run has no room in the windows or in the ring, the stream waits for it only while it has as
//     many slices in flight itself. Otherwise the next slice gets a credit of its own, if that has room.
// Why it suffices: windows count bytes, so other operations find no more data ahead of theirs. A full window
// still holds some runs, which keep the link busy while a stream waits for room. Without the wait, messages
// would stay as short as the first ones: each that arrives makes room for one like it. A wait ends, as the
// slices in flight depend only on earlier operations, or on an earlier phase of the same one. Slices of
// other streams give no such promise: they may await a rank that waits for this stream. Slices remain the
// unit of all else, so no result depends on runs.
// Tasks: between two polls, a thread copies, unpacks or adds up a run, too, if its slices are there and lie
// end to end. A poll of MPI takes some microseconds, a good part of the time that a slice takes. A sum of
// many inputs has shorter runs, and so has a strided copy. So other work waits for a task about as long as
// it may wait for a message.
//
// Note [Trials of runs]
// Problem: on a link of 12 to 20 Gbit/s (5 to 8 without a rendezvous protocol), the rate does not tell
// whether runs pay (Note [Runs of slices]). Slices that travel alone may keep the CPU so busy that they reach
// no more: through the memory of a host, 13 to 20 Gbit/s, and runs 24. Over MPI's TCP, runs are slower than
// slices.
// Rule: on such a link, the receiver tries both ways. After 128 slices, and then after every 8,192, eight
// blocks of slices travel alone and in runs by turns. If those of the other way arrive a quarter faster in
// three of the four pairs of blocks, that is the way until the next trial.
//   - Blocks are short, because the rate also depends on what the ranks do besides: a gather may first copy
//     the rank's own part.
//   - The rate of a way is that of the bytes which arrived while more were in flight. The first slices of a
//     block do not count, because some were still sent the other way, nor do pauses of a millisecond.
//   - Slices that cannot travel in runs, such as those of all-to-alls, count as well. They bring both rates
//     nearer to each other, so that the way stays.
// Why it suffices: at most 256 of 8,704 slices travel the slower way, unless a choice is wrong. That one
// lasts until the next trial.
//
// Thread safety: none.
#pragma once

#include <cstdint>

namespace weft {

class RunTrials {
 public:
  static constexpr int64_t kBlockSlices = 64;
  static constexpr int kBlocks = 8;
  static constexpr int64_t kFirstSlices = 128;  // Slices before the first trial.
  static constexpr int64_t kSlices = 8192;      // Slices between two trials.

  // True if the next slices should travel in runs.
  bool uses_runs() const { return prefers_runs_ != is_other_way(); }
  // Slices have arrived. Those that arrive in one poll count together, in EndPoll.
  void Arrived(int64_t bytes, int64_t slices) {
    bytes_of_poll_ += bytes;
    slices_of_poll_ += slices;
  }
  // `any_in_flight`: more slices are on their way to this rank. `needs_trials`: the rate does not tell
  // whether runs pay. If that is false, a trial is given up, and the choice stays.
  void EndPoll(int64_t now_ns, bool any_in_flight, bool needs_trials);

 private:
  struct Rate {
    int64_t bytes = 0, ns = 0;
    double bytes_per_ns() const { return ns == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(ns); }
  };
  void EndPair();
  void BeginSlices(int64_t slices);
  bool is_other_way() const { return block_ > 0 && block_ % 2 == 0; }

  bool prefers_runs_ = false;
  int block_ = 0;                       // Of a trial, from 1 on. 0: no trial.
  int64_t slices_left_ = kFirstSlices;  // Of this block, or until the next trial.
  int64_t bytes_of_poll_ = 0, slices_of_poll_ = 0;
  int64_t last_ns_ = 0;     // The last arrival, if more were in flight then; otherwise 0.
  Rate preferred_, other_;  // Of the two ways, in this pair of blocks.
  int faster_pairs_ = 0;    // Pairs in which the other way was faster.
};

}  // namespace weft
