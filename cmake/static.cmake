# SPDX-License-Identifier: Apache-2.0
# tern-static: the same objects linked with static libraries, for images and machines without a Debian. Not part of
# `all`; `make static` builds it. It loads no shared libraries (base/plugin.h), so what needs libcurl says that it isn't
# there, and lines on a terminal are read without editing.
#
# plugin.c is compiled once more, with TERN_STATIC: since its function is there before the archive is searched, the
# archive's own is not taken. The linker's warnings about getaddrinfo, dlopen and the like are off: host names are
# looked up by glibc's own code (/etc/hosts and DNS are in libc since 2.34; other services of nsswitch.conf are not
# found), and nobody calls dlopen.
add_executable(static_program EXCLUDE_FROM_ALL src/base/plugin.c $<TARGET_OBJECTS:tern>)
set_target_properties(static_program PROPERTIES OUTPUT_NAME tern-static)
target_include_directories(static_program PRIVATE src)
target_compile_definitions(static_program PRIVATE TERN_STATIC=1 _GNU_SOURCE)
target_link_options(static_program PRIVATE -static -s LINKER:--no-warnings)
add_dependencies(static_program tern_server tern_core llhttp)
# Debian has no libevent-dev of two architectures at a time: tools/get-arm64-libevent unpacks the other one here.
target_link_directories(static_program PRIVATE ${CMAKE_BINARY_DIR}/deps/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
target_link_libraries(static_program PRIVATE $<TARGET_FILE:tern_server> $<TARGET_FILE:llhttp> $<TARGET_FILE:tern_core>
                      -levent_pthreads -levent_core -lssl -lcrypto -ljson-c -lxxhash -lm)

set(image_arch amd64)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(image_arch arm64)
endif()
add_custom_target(image COMMAND ${CMAKE_SOURCE_DIR}/tools/make-image $<TARGET_FILE:static_program> ${image_arch}
                  ${PROJECT_VERSION} ${CMAKE_BINARY_DIR}/image VERBATIM)
add_dependencies(image static_program)
