# How sources are compiled: precompiled headers, groups of sources, and the libraries of layers.

# weft_precompiled_headers(<name> HEADERS ... [LINK targets...] [OPTIONS compile options...])
# Defines a set of precompiled headers, which targets use with weft_precompile(<target> <name>). Headers of other libraries take half
# of the compile time of most sources. They are precompiled once for the layers, benchmarks and examples, and once
# for the tests, whose options differ.
# Precompiled headers hide a missing #include. Of the presets, `release`, `asan` and `tsan` have them (WEFT_PRECOMPILE is `all`). Their
# builds and tests find a missing #include in public headers only (tests/rules). Builds without them, such as the preset `debug`,
# find it in every source.
# nlohmann/json.hpp is not among them: every source, also one that does not use it, would instantiate its templates for 0.6 s.
function(weft_precompiled_headers name)
  cmake_parse_arguments(ARG "" "" "HEADERS;LINK;OPTIONS" ${ARGN})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${name}.cc CONTENT "")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PRIVATE ${ARG_LINK})
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()

# weft_precompile(<target> <name>): uses the precompiled headers <name>, if this build has them.
function(weft_precompile target name)
  if(TARGET ${name})
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()

# weft_precompile_program(<target>): a program uses the precompiled headers of the layers, if this build has them.
function(weft_precompile_program target)
  weft_precompile(${target} weft_precompiled)
  if(TARGET weft_precompiled)
    target_compile_options(${target} PRIVATE -fPIC)  # The precompiled headers have this option. Programs have -fPIE by default.
  endif()
endfunction()

# weft_parses_flags(<source>...): sources that define flags with CLI11 and have no loops over data. Their templates take the compiler ten
# seconds for each source at -O3.
function(weft_parses_flags)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
endfunction()

if(WEFT_PRECOMPILE STREQUAL "all")
  weft_precompiled_headers(weft_precompiled
    HEADERS <absl/container/flat_hash_map.h> <absl/container/inlined_vector.h> <absl/functional/any_invocable.h>
            <absl/functional/function_ref.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h>
            <absl/strings/str_join.h> <absl/time/time.h> <absl/types/span.h>
            <algorithm> <atomic> <deque> <functional> <map> <memory> <mutex> <numeric> <optional> <set> <string> <variant> <vector>
    LINK weft_options absl::flat_hash_map absl::inlined_vector absl::any_invocable absl::function_ref absl::statusor absl::strings
         absl::str_format absl::time absl::span)
endif()

# weft_unity(<target> tests|layers)
# Most of the time of a compiler goes into headers and templates that many sources share. If WEFT_UNITY is `all`, or is the kind of
# this target, some sources of the target are compiled as one; group_sources.py says which. This can hide a missing #include or a
# clash of names. The preset debug therefore compiles each source alone.
function(weft_unity target kind)
  if(WEFT_UNITY STREQUAL "all" OR WEFT_UNITY STREQUAL kind)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP UNITY_BUILD_RELOCATABLE ON)
    # GCC takes the sources of a group for headers, and warns of a lambda that captures what an anonymous namespace declares.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
    set_property(GLOBAL APPEND PROPERTY WEFT_UNITY_TARGETS ${target})
  endif()
endfunction()

# Lists the sources of a target that exist and are compiled with the options of the target.
function(weft_plain_sources target result)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  set(plain)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} NORMALIZE)
    set(is_plain TRUE)
    foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS GENERATED SKIP_PRECOMPILE_HEADERS)
      get_source_file_property(value ${source} TARGET_DIRECTORY ${target} ${property})
      if(value)
        set(is_plain FALSE)
      endif()
    endforeach()
    if(is_plain AND EXISTS ${source})
      list(APPEND plain ${source})
    endif()
  endforeach()
  set(${result} ${plain} PARENT_SCOPE)
endfunction()

# Groups the sources of all targets that weft_unity named since the last call; called after the last target of a project. A changed
# source or header can change the groups, so that the build then configures itself again.
function(weft_group_sources)
  get_property(targets GLOBAL PROPERTY WEFT_UNITY_TARGETS)
  if(NOT targets)
    return()
  endif()
  set_property(GLOBAL PROPERTY WEFT_UNITY_TARGETS)
  cmake_path(SET root NORMALIZE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../..)
  set(script ${root}/tools/cmake/group_sources.py)
  set(folders include src sharding context_parallel tests bench python)
  set(lines "")
  foreach(target IN LISTS targets)
    weft_plain_sources(${target} sources)
    string(APPEND lines "${target};${sources}\n")
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources})
  endforeach()
  list(TRANSFORM folders REPLACE ".+" "${root}/\\0/*.h" OUTPUT_VARIABLE headers)
  file(GLOB_RECURSE headers ${headers})
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${script} ${root}/tools/cmake/cpp_statements.py
               ${headers})
  file(WRITE ${PROJECT_BINARY_DIR}/unity_targets.txt "${lines}")
  execute_process(COMMAND ${script} ${root} INPUT_FILE ${PROJECT_BINARY_DIR}/unity_targets.txt
                  OUTPUT_VARIABLE groups ERROR_VARIABLE messages RESULT_VARIABLE result)
  if(result)
    message(FATAL_ERROR "${script}: ${result}\n${messages}")
  endif()
  message(VERBOSE "${messages}")  # The sources that are compiled alone, and why.
  string(REGEX MATCHALL "[^\n]+" groups "${groups}")
  foreach(group IN LISTS groups)
    string(REPLACE "|" ";" group "${group}")
    list(GET group 0 target)
    list(GET group 1 source)
    list(GET group 2 number)
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${number})
  endforeach()
endfunction()

# weft_layer(<name> SOURCES ... [PUBLIC deps...] [PRIVATE deps...])
# A library of a layer: weft_<name>, alias weft::<name>. Most layers have one. Sources are relative to the folder of the caller.
function(weft_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(weft_${name} STATIC ${ARG_SOURCES})
  add_library(weft::${name} ALIAS weft_${name})
  set_target_properties(weft_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(weft_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                 $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                          PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_features(weft_${name} PUBLIC cxx_std_20)
  target_link_libraries(weft_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE}
                                     $<BUILD_INTERFACE:weft_options>)
  weft_precompile(weft_${name} weft_precompiled)
  weft_unity(weft_${name} layers)
  install(TARGETS weft_${name} EXPORT weft-targets)
endfunction()
