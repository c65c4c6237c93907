# SPDX-License-Identifier: Apache-2.0
# What is installed, and the Debian packages that CPack makes of it (`make deb`).
#
# Components: runtime (the program and its pages), library and development (libtern), and service (configuration and
# unit, whose places are absolute: only a package has them, `cmake --install` does not).
# Packages: tern = runtime + service, libtern0 = library, libtern-dev = development.

set(TERN_UNIT_DIR /lib/systemd/system)

install(DIRECTORY models/tern-poet DESTINATION share/tern/models COMPONENT runtime)
install(FILES packaging/tern.yaml DESTINATION /etc/tern COMPONENT service EXCLUDE_FROM_ALL)
install(FILES packaging/systemd/tern.service DESTINATION ${TERN_UNIT_DIR} COMPONENT service EXCLUDE_FROM_ALL)

# Debian wants its own list of changes, with one entry for the package, and no date of the build inside.
set(TERN_MAINTAINER "the authors of tern <tern@localhost.localdomain>" CACHE STRING "Who answers for the package")
set(debian_dir ${CMAKE_BINARY_DIR}/debian)
file(WRITE ${debian_dir}/changelog.Debian
"tern (${PROJECT_VERSION}-1) bookworm; urgency=medium

  * Built from the sources of ${PROJECT_VERSION}; see changelog.gz.

 -- ${TERN_MAINTAINER}  ${TERN_DATE_RFC}
")
file(WRITE ${debian_dir}/conffiles "/etc/tern/tern.yaml\n")
add_custom_command(OUTPUT ${debian_dir}/changelog.gz ${debian_dir}/changelog.Debian.gz
  COMMAND sh -c "gzip -9nc '${CMAKE_SOURCE_DIR}/CHANGELOG.md' > changelog.gz"
  COMMAND sh -c "gzip -9nc changelog.Debian > changelog.Debian.gz"
  WORKING_DIRECTORY ${debian_dir} DEPENDS CHANGELOG.md ${debian_dir}/changelog.Debian VERBATIM)
add_custom_target(debian_files ALL DEPENDS ${debian_dir}/changelog.gz)
install(FILES packaging/debian/copyright ${debian_dir}/changelog.gz ${debian_dir}/changelog.Debian.gz
        DESTINATION share/doc/tern COMPONENT service EXCLUDE_FROM_ALL)
# What the READMEs link to comes along at the same places.
install(FILES README.md README.zh-CN.md CHANGELOG.md CONTRIBUTING.md DESTINATION share/doc/tern COMPONENT runtime)
install(FILES bindings/python/README.md DESTINATION share/doc/tern/bindings/python COMPONENT runtime)
install(DIRECTORY docs/ DESTINATION share/doc/tern/docs COMPONENT runtime FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tern)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR "the authors of tern")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES TRUE)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_COMPONENTS_ALL runtime service)
set(CPACK_COMPONENT_RUNTIME_GROUP tern)
set(CPACK_COMPONENT_SERVICE_GROUP tern)
if(TARGET tern_shared)
  list(APPEND CPACK_COMPONENTS_ALL library library_docs development development_docs)
  set(CPACK_COMPONENT_LIBRARY_GROUP library)
  set(CPACK_COMPONENT_LIBRARY_DOCS_GROUP library)
  set(CPACK_COMPONENT_DEVELOPMENT_GROUP development)
  set(CPACK_COMPONENT_DEVELOPMENT_DOCS_GROUP development)
  foreach(package libtern${PROJECT_VERSION_MAJOR} libtern-dev)
    set(part library_docs)
    if(package STREQUAL libtern-dev)
      set(part development_docs)
    endif()
    install(FILES packaging/debian/copyright ${debian_dir}/changelog.gz ${debian_dir}/changelog.Debian.gz
            DESTINATION share/doc/${package} COMPONENT ${part} EXCLUDE_FROM_ALL)
  endforeach()
  install(DIRECTORY examples DESTINATION share/doc/libtern-dev COMPONENT development_docs EXCLUDE_FROM_ALL)
endif()
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${TERN_MAINTAINER}")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip) # most of it are weights, which nothing makes smaller

set(CPACK_DEBIAN_TERN_PACKAGE_NAME tern)
set(CPACK_DEBIAN_TERN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_TERN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TERN_PACKAGE_RECOMMENDS "libcurl4, ca-certificates")
set(CPACK_DEBIAN_TERN_PACKAGE_SUGGESTS "libedit2")
set(CPACK_DEBIAN_TERN_DESCRIPTION "inference server for ERNIE 4.5 language models on CPUs
Serves Baidu's ERNIE 4.5 models over HTTP with the command line, API, log
lines and metrics of vLLM: continuous batching, paged KV cache, prefix
caching, chunked prefill, quantized weights. One program in C, no Python.

A small demonstration model comes with it. The service is not started by
the installation: see /etc/tern/tern.yaml, then systemctl enable --now tern.")
set(CPACK_DEBIAN_TERN_PACKAGE_CONTROL_EXTRA
    ${debian_dir}/conffiles
    ${CMAKE_SOURCE_DIR}/packaging/debian/postinst
    ${CMAKE_SOURCE_DIR}/packaging/debian/prerm
    ${CMAKE_SOURCE_DIR}/packaging/debian/postrm)

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libtern${PROJECT_VERSION_MAJOR})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS ON)
file(WRITE ${debian_dir}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${debian_dir}/triggers)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "inference of ERNIE 4.5 language models, shared library
The engine of tern for other programs: models, tokenizers, chat templates
and generation behind one header.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtern-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "libtern${PROJECT_VERSION_MAJOR} (= ${PROJECT_VERSION}-1), libjson-c-dev, libxxhash-dev")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "inference of ERNIE 4.5 language models, for building programs
Header, static library, pkg-config and CMake files of libtern, and examples.")

include(CPack)

add_custom_target(deb COMMAND ${CMAKE_CPACK_COMMAND} --config ${CMAKE_BINARY_DIR}/CPackConfig.cmake
                  WORKING_DIRECTORY ${CMAKE_BINARY_DIR} USES_TERMINAL VERBATIM)
add_dependencies(deb tern pages debian_files)
if(TARGET tern_shared)
  add_dependencies(deb tern_shared tern_static)
endif()
