// Exit codes of weft's processes. docs/training.md lists them; mpirun passes on those that are not 0.
#pragma once

namespace weft {

inline constexpr int kExitDone = 0;
// Out of memory, a full disk, a failed start of MPI, replicas or collectives that differ between ranks, or a
// defect.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitBadUsage = 2;  // The command line or the configuration.
inline constexpr int kExitBadFile = 3;   // An input or output file.
// A loss, the gradient norm or a weight is infinite or NaN, or a weight is too large for an export.
inline constexpr int kExitNotFinite = 4;
inline constexpr int kExitRankMissing = 86;   // A rank failed, or did not respond in time.
inline constexpr int kExitInterrupted = 130;  // A signal stopped the program.
// mpirun and shells add it to the number of the signal that killed a process.
inline constexpr int kExitSignalBase = 128;

}  // namespace weft
