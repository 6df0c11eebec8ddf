# Test programs: their compile options, launchers and labels.

# The sanitizers run on suites whose ranks are threads: on those of the engine, which the target weft_tests_engine builds and the
# label `engine` of ctest selects, or on those of all these folders, by weft_tests_threads and the label `threads`.
set(WEFT_ENGINE_FOLDERS core mesh memory comm)
set(WEFT_THREAD_TEST_FOLDERS ${WEFT_ENGINE_FOLDERS} sharding context_parallel)
add_custom_target(weft_tests_engine)
add_custom_target(weft_tests_threads)

# Compile options of tests; linked last, so that they override others. Sources of tests are hardly optimized, and not checked for
# undefined behavior, which would take more than half of a build under the sanitizers. The layers that they test are.
add_library(weft_test_options INTERFACE)
if(WEFT_SANITIZE)
  target_compile_options(weft_test_options INTERFACE -Og -fno-sanitize=undefined)
else()
  target_compile_options(weft_test_options INTERFACE $<$<CONFIG:Release>:-Og>)
endif()

# weft_test_library(<name> SOURCES ... LINK targets...)
# Sources that several tests share, with the options of tests.
function(weft_test_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_LINK} GTest::gmock PRIVATE weft_options weft_test_options)
  target_compile_options(${name} PRIVATE -fPIE)  # Like the precompiled header.
  weft_precompile(${name} weft_test_precompiled)
  weft_unity(${name} tests)
endfunction()

# weft_rank_test(<name> <target> RANKS count COMMAND launcher... LABELS labels... TIMEOUT seconds [FILTER pattern] [SLOW])
# A run of a GoogleTest program whose ranks are processes, which agree on the verdict.
function(weft_rank_test name target)
  cmake_parse_arguments(ARG "SLOW" "RANKS;TIMEOUT;FILTER" "COMMAND;LABELS" ${ARGN})
  set(filter)
  if(ARG_FILTER)
    set(filter --gtest_filter=${ARG_FILTER})
  endif()
  add_test(NAME ${name} COMMAND ${ARG_COMMAND} $<TARGET_FILE:${target}> ${filter}
                                --gtest_output=json:${PROJECT_BINARY_DIR}/results/${name}.json)
  set(processors 2)
  if(ARG_RANKS EQUAL 1)
    set(processors 1)
  endif()
  if(ARG_RANKS EQUAL 2 AND NOT ARG_SLOW)
    list(APPEND ARG_LABELS quick)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" PROCESSORS ${processors}
                                          ENVIRONMENT "WEFT_TIMEOUT_S=60;OMP_NUM_THREADS=1")
endfunction()

# weft_thread_test(<target> TIMEOUT seconds COST seconds [LABELS labels...] [SLOW])
# A run of a GoogleTest program in one process.
function(weft_thread_test target)
  cmake_parse_arguments(ARG "SLOW" "TIMEOUT;COST" "LABELS" ${ARGN})
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(folder IN_LIST WEFT_THREAD_TEST_FOLDERS)
    list(APPEND ARG_LABELS threads)
    add_dependencies(weft_tests_threads ${target})
  endif()
  if(folder IN_LIST WEFT_ENGINE_FOLDERS)
    list(APPEND ARG_LABELS engine)
    add_dependencies(weft_tests_engine ${target})
  endif()
  if(NOT ARG_SLOW)
    list(APPEND ARG_LABELS quick)
  endif()
  add_test(NAME ${target} COMMAND ${target} --gtest_output=json:${PROJECT_BINARY_DIR}/results/${target}.json)
  set(environment OMP_NUM_THREADS=1)
  if(WEFT_SANITIZE MATCHES "thread")
    list(APPEND environment WEFT_SCHEDULES=2)
  elseif(WEFT_SANITIZE)
    list(APPEND environment WEFT_SCHEDULES=10)
  endif()
  set_tests_properties(${target} PROPERTIES TIMEOUT ${ARG_TIMEOUT} COST ${ARG_COST} LABELS "${ARG_LABELS}"
                                            ENVIRONMENT "${environment}")
endfunction()

# weft_test(<name> SOURCES ... LINK targets... [MPI_RANKS counts...] [STORE_RANKS counts...] [TIMEOUT seconds] [COST seconds]
#           [LABELS labels...] [BETWEEN_NODES pattern] [SINGLE_THREAD] [SLOW] [CHILD_PROCESSES])
# A GoogleTest program. Without MPI_RANKS and STORE_RANKS it runs in one process, and its ranks, if any, are threads. With MPI_RANKS it
# runs once under mpirun for each count, in builds with MPI. With STORE_RANKS it runs once under tools/store_ranks.py for each count;
# the count 2x3 means two nodes of three ranks. Runs on one node leave out the cases of BETWEEN_NODES. The ranks agree on the verdict. A
# rank computes with one thread unless the test sets another number, because ctest runs tests in parallel. A SINGLE_THREAD program is
# left out under ThreadSanitizer, which would find nothing in it. The ranks of a CHILD_PROCESSES program are processes that it starts.
# They answer each other within seconds, which they may miss under a sanitizer: it is left out there. COST is the approximate time of a
# long test under the slowest preset: ctest starts the longest tests first, so that no core idles at the end. Under the sanitizers
# TIMEOUT counts four times, and WEFT_SCHEDULES limits long tests; under ThreadSanitizer the limit is lowest, because simulated ranks
# are fibers of one thread, which has no races. Programs that are not SLOW have the label `quick`; of the runs of processes, only the
# ones with two ranks have it.
function(weft_test name)
  cmake_parse_arguments(ARG "SINGLE_THREAD;SLOW;CHILD_PROCESSES" "TIMEOUT;COST;BETWEEN_NODES" "SOURCES;LINK;MPI_RANKS;STORE_RANKS;LABELS"
                        ${ARGN})
  if(ARG_SINGLE_THREAD AND WEFT_SANITIZE MATCHES "thread")
    return()
  endif()
  if(ARG_CHILD_PROCESSES AND WEFT_SANITIZE)
    return()
  endif()
  set(runs_processes FALSE)
  if(ARG_MPI_RANKS OR ARG_STORE_RANKS)
    set(runs_processes TRUE)
  endif()
  if(NOT WEFT_MPI)
    set(ARG_MPI_RANKS)
  endif()
  if(runs_processes AND NOT ARG_MPI_RANKS AND NOT ARG_STORE_RANKS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(WEFT_SANITIZE)
    math(EXPR ARG_TIMEOUT "4 * ${ARG_TIMEOUT}")
  endif()
  if(NOT ARG_COST)
    set(ARG_COST 0)
  endif()
  set(slow)
  if(ARG_SLOW)
    set(slow SLOW)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gmock $<IF:$<BOOL:${runs_processes}>,weft_test_mpi_main,weft_test_main>
                                        weft_options weft_test_options)
  weft_precompile(${name} weft_test_precompiled)
  weft_unity(${name} tests)
  set(one_node)
  if(ARG_BETWEEN_NODES)
    set(one_node FILTER -${ARG_BETWEEN_NODES})
  endif()
  foreach(ranks IN LISTS ARG_MPI_RANKS)
    weft_rank_test(${name}.mpi${ranks} ${name} RANKS ${ranks} TIMEOUT ${ARG_TIMEOUT} LABELS mpi ${ARG_LABELS} ${one_node} ${slow}
                   COMMAND ${PROJECT_SOURCE_DIR}/tools/mpirun.sh -n ${ranks})
  endforeach()
  foreach(count IN LISTS ARG_STORE_RANKS)
    set(ranks ${count})
    set(options)
    set(filter ${one_node})
    if(count MATCHES "^([0-9]+)x([0-9]+)$")
      math(EXPR ranks "${CMAKE_MATCH_1} * ${CMAKE_MATCH_2}")
      set(options --ppn ${CMAKE_MATCH_2})
      set(filter)
    endif()
    weft_rank_test(${name}.store${count} ${name} RANKS ${ranks} TIMEOUT ${ARG_TIMEOUT} LABELS store ${ARG_LABELS} ${filter} ${slow}
                   COMMAND ${PROJECT_SOURCE_DIR}/tools/store_ranks.py -n ${ranks} ${options})
  endforeach()
  if(NOT runs_processes)
    weft_thread_test(${name} TIMEOUT ${ARG_TIMEOUT} COST ${ARG_COST} LABELS ${ARG_LABELS} ${slow})
  endif()
endfunction()
