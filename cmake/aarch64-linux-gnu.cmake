# SPDX-License-Identifier: Apache-2.0
# Cross build for arm64 on a Debian machine with multiarch libraries (tools/install-deps.sh arm64).
# Programs run under qemu-user; libc6:arm64 puts the loader where it looks, so no sysroot is needed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig)
