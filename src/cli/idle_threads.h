// How compute threads wait for work.
#pragma once

namespace weft {

// Lets OpenMP threads that wait go to sleep soon, unless the environment says otherwise (OMP_WAIT_POLICY,
// GOMP_SPINCOUNT). By default they spin for milliseconds, which is fast alone on a machine, and takes the CPU
// from other ranks and from communication where it is not: steps were measured 20 times as long on a busy
// machine.
//
// libgomp reads its environment when it is loaded, before main: the process starts its program anew, once. To
// be called before anything else; returns where there is nothing to do, or no way to do it.
void LetIdleThreadsSleep(char** arguments);

}  // namespace weft
