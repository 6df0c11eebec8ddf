// Attribute of functions that are compiled for several generations of vector instructions.
//
// A build for any processor uses the vectors that all processors of the architecture have. WEFT_VECTOR_CLONES
// before a function with a hot loop makes the compiler emit it for wider vectors too, with what it inlines.
// The program selects one of the clones when it is loaded. All give the same bits, because the build forbids
// contraction of products and sums.
//
// The macro is empty if the compiler cannot clone, and in builds for the instruction set of one machine
// (WEFT_NATIVE).
#pragma once

#ifdef WEFT_HAS_VECTOR_CLONES
#define WEFT_VECTOR_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define WEFT_VECTOR_CLONES
#endif
