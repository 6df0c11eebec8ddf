// The launcher of this process (mpirun, srun, or none), as far as it is known without MPI.
#pragma once

namespace weft {

// True if mpirun or srun started this process as a rank other than 0.
bool IsNonzeroRank();

// True if standard output is shown on a terminal that can overwrite its last line (not TERM=dumb). mpirun
// gives every rank a pseudo-terminal, so under mpirun the answer depends on mpirun's own standard output too.
bool IsOutputTerminal();

}  // namespace weft
