// Spin time of idle OpenMP threads.
#pragma once

namespace weft {

// Makes idle OpenMP threads sleep after about a microsecond, unless OMP_WAIT_POLICY or GOMP_SPINCOUNT is set.
// By default they spin for milliseconds. Spinning threads take the CPU from other ranks and from
// communication: on a busy machine, steps took 20 times as long.
//
// libgomp reads its environment when it is loaded, before main. So this function sets GOMP_SPINCOUNT and
// executes the program again, once. It returns if one of the variables is set, or if the execution fails.
// REQUIRES: main has done nothing yet.
void LetIdleThreadsSleep(char** arguments);

}  // namespace weft
