# SPDX-License-Identifier: Apache-2.0
# libtern.so and libtern.a from the core's objects, what a program needs to find them (pkg-config file,
# CMake package tern with the targets tern::tern and tern::tern_static), and the example programs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(map ${PROJECT_SOURCE_DIR}/src/lib/libtern.map)
add_library(tern_shared SHARED $<TARGET_OBJECTS:tern_core>)
set_target_properties(tern_shared PROPERTIES OUTPUT_NAME tern EXPORT_NAME tern LINKER_LANGUAGE C
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${map})
target_link_options(tern_shared PRIVATE -Wl,--version-script=${map} -Wl,-z,defs -Wl,--as-needed)
target_link_libraries(tern_shared PRIVATE Threads::Threads PkgConfig::JSONC PkgConfig::XXHASH m)

# One object in which everything but tern_* is local: names inside (buf_init, json_parse, ...) can't meet
# those of the program that links the archive.
set(object ${CMAKE_CURRENT_BINARY_DIR}/libtern.o)
add_custom_command(OUTPUT ${object}
  COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o ${object} $<TARGET_OBJECTS:tern_core>
  COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${object}
  DEPENDS tern_core $<TARGET_OBJECTS:tern_core>
  COMMAND_EXPAND_LISTS VERBATIM)
add_library(tern_static STATIC ${object})
set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
set_target_properties(tern_static PROPERTIES OUTPUT_NAME tern LINKER_LANGUAGE C)
target_link_libraries(tern_static INTERFACE json-c xxhash m pthread)

foreach(t tern_shared tern_static)
  target_include_directories(${t} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()

# ---- installed ----
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tern)
file(RELATIVE_PATH TERN_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" TERN_PC_PREFIX "${TERN_PC_PREFIX}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/tern.pc.in ${CMAKE_CURRENT_BINARY_DIR}/tern.pc @ONLY)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/tern-config.cmake
  "include(\${CMAKE_CURRENT_LIST_DIR}/tern-targets.cmake)\n")
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/tern-config-version.cmake
  COMPATIBILITY SameMajorVersion)
install(TARGETS tern_shared EXPORT tern-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT library NAMELINK_COMPONENT development)
install(TARGETS tern_static EXPORT tern-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT development)
install(EXPORT tern-targets NAMESPACE tern:: DESTINATION ${package_dir} COMPONENT development)
install(FILES ${PROJECT_SOURCE_DIR}/include/tern.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT development)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tern-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/tern-config-version.cmake DESTINATION ${package_dir}
  COMPONENT development)

# ---- examples ----
file(GLOB examples CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.c)
foreach(f ${examples})
  get_filename_component(name ${f} NAME_WE)
  add_executable(example_${name} ${f})
  set_target_properties(example_${name} PROPERTIES OUTPUT_NAME ${name}
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/examples)
  target_link_libraries(example_${name} PRIVATE tern_shared Threads::Threads m)
endforeach()
