# SPDX-License-Identifier: Apache-2.0
# tern-static: the same objects linked with static libraries, for images and machines without a Debian. Not part of
# `all`; `make static` builds it. It loads no shared libraries (base/plugin.h), so what needs libcurl says that it isn't
# there, and lines on a terminal are read without editing.
#
# plugin.c is compiled once more, with TERN_STATIC: since its function is there before the archive is searched, the
# archive's own is not taken. The linker's warnings about getaddrinfo, dlopen and the like are off: host names are
# looked up by glibc's own code (/etc/hosts and DNS are in libc since 2.34; other services of nsswitch.conf are not
# found), and nobody calls dlopen.
add_executable(tern_static EXCLUDE_FROM_ALL src/base/plugin.c $<TARGET_OBJECTS:tern>)
set_target_properties(tern_static PROPERTIES OUTPUT_NAME tern-static)
target_include_directories(tern_static PRIVATE src)
target_compile_definitions(tern_static PRIVATE TERN_STATIC=1 _GNU_SOURCE)
target_link_options(tern_static PRIVATE -static -s LINKER:--no-warnings)
add_dependencies(tern_static tern_server tern_core llhttp)
# Debian has no libevent-dev of two architectures at a time: tools/get-arm64-libevent unpacks the other one here.
target_link_directories(tern_static PRIVATE ${CMAKE_BINARY_DIR}/deps/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
target_link_libraries(tern_static PRIVATE $<TARGET_FILE:tern_server> $<TARGET_FILE:llhttp> $<TARGET_FILE:tern_core>
                      -levent_pthreads -levent_core -lssl -lcrypto -ljson-c -lxxhash -lm)
