// What mpirun did with this process.
#pragma once

namespace weft {

// Whether mpirun started this process as another rank than 0. Known without MPI.
bool StartedAsLaterRank();

// Whether people watch standard output on a terminal. mpirun gives its ranks a pseudo-terminal whatever its
// own output is, so that its own is what counts.
bool OutputIsTerminal();

}  // namespace weft
