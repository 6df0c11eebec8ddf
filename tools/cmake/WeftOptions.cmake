# Language level, warnings, sanitizers and ccache for every target of the tree.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

foreach(option WEFT_PRECOMPILE WEFT_UNITY)
  if(NOT ${option} MATCHES "^(none|tests|all)$")
    message(FATAL_ERROR "${option} must be none, tests or all, not '${${option}}'")
  endif()
endforeach()

find_program(WEFT_CCACHE ccache)
if(PROJECT_IS_TOP_LEVEL AND WEFT_CCACHE)
  # Without this setting ccache does not cache sources that use precompiled headers.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${WEFT_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
endif()

add_library(weft_options INTERFACE)
if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC collects its own garbage whenever its memory has doubled, which takes a tenth of its time. Start at 1 GiB: most sources
  # need less than that in total.
  target_compile_options(weft_options INTERFACE --param=ggc-min-heapsize=1048576)
endif()
# No contraction: the vector body and the scalar tail of an elementwise kernel must round alike.
target_compile_options(weft_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
                                              -Woverloaded-virtual -Wno-psabi -ffp-contract=off)
# GCC 12 falsely reports uninitialized uses in abseil's InlinedVector and in the AVX-512 intrinsics. clang-tidy's analyzer
# finds the real ones.
target_compile_options(weft_options INTERFACE -Wno-uninitialized -Wno-maybe-uninitialized)
if(WEFT_WERROR)
  target_compile_options(weft_options INTERFACE -Werror)
endif()
if(WEFT_NATIVE)
  target_compile_options(weft_options INTERFACE -march=native)
  # GCC avoids 64-byte vectors by default, as some processors lower their clock for them. The matrix library uses them
  # anyway.
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-mprefer-vector-width=512 WEFT_HAS_WIDE_VECTORS)
  if(WEFT_HAS_WIDE_VECTORS)
    target_compile_options(weft_options INTERFACE -mprefer-vector-width=512)
  endif()
endif()
if(NOT WEFT_NATIVE AND NOT WEFT_SANITIZE)
  # Selection among clones runs before the sanitizers are initialized.
  include(CheckCXXSourceCompiles)
  check_cxx_source_compiles("
    __attribute__((target_clones(\"default\", \"arch=x86-64-v3\", \"arch=x86-64-v4\"))) int f(int x) { return x; }
    int main(int argc, char**) { return f(argc); }" WEFT_HAS_VECTOR_CLONES)
  if(WEFT_HAS_VECTOR_CLONES)
    target_compile_definitions(weft_options INTERFACE WEFT_HAS_VECTOR_CLONES)
  endif()
endif()
if(WEFT_SANITIZE)
  target_compile_options(weft_options INTERFACE -fsanitize=${WEFT_SANITIZE} -fno-omit-frame-pointer
                                                -fno-sanitize-recover=all)
  target_link_options(weft_options INTERFACE -fsanitize=${WEFT_SANITIZE})
  if(WEFT_SANITIZE MATCHES "address")
    # AddressSanitizer reports these accesses as well. Checked twice, they take a quarter of the time of the compiler.
    target_compile_options(weft_options INTERFACE -fno-sanitize=null,object-size,pointer-overflow)
  endif()
  if(WEFT_SANITIZE_EXCEPT)
    target_compile_options(weft_options INTERFACE -fno-sanitize=${WEFT_SANITIZE_EXCEPT})
  endif()
  if(WEFT_SANITIZE MATCHES "thread")
    # libgomp and oneDNN are not instrumented: ThreadSanitizer would report their synchronization as races.
    # GCC warns about fences, which ThreadSanitizer does not model (-Wtsan). Every fence in weft accompanies an atomic
    # flag, which ThreadSanitizer does model.
    set(WEFT_OPENMP OFF)
    set(WEFT_ONEDNN OFF)
    target_compile_options(weft_options INTERFACE -Wno-tsan)
  endif()
endif()
