// The launcher of this process (mpirun, or none), as far as it is known without MPI.
#pragma once

namespace weft {

// Whether mpirun started this process as a rank other than 0.
bool IsNonzeroRank();

// Whether a person sees standard output on a terminal. mpirun gives every rank a pseudo-terminal, so under
// mpirun the answer depends on mpirun's own standard output.
bool IsOutputTerminal();

}  // namespace weft
