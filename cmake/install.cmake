# make install: headers, libraries, the tool, ridge.pc, ridge_io.pc, find_package(ridge), man pages.
include(CMakePackageConfigHelpers)
install(TARGETS ridge_shared ridge_static EXPORT ridge-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
set_target_properties(ridge_shared PROPERTIES EXPORT_NAME ridge)
set_target_properties(ridge_static PROPERTIES EXPORT_NAME static)
if(RIDGE_HAVE_IO)
    install(TARGETS ridge_io_shared ridge_io_static EXPORT ridge-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    set_target_properties(ridge_io_shared PROPERTIES EXPORT_NAME io)
    set_target_properties(ridge_io_static PROPERTIES EXPORT_NAME io_static)
    install(FILES include/ridge_io.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
install(EXPORT ridge-targets NAMESPACE ridge:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ridge)
install(FILES include/ridge.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES man/ridge.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES man/ridge.3 DESTINATION ${CMAKE_INSTALL_MANDIR}/man3)
if(RIDGE_TOOLS)
    install(TARGETS ridge_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# What a program that links libridge.a must add. With CUDA that is the static CUDA runtime, which is NVIDIA's to distribute.
set(RIDGE_STATIC_LIBS "-lm")
if(RIDGE_OPENMP)
    string(PREPEND RIDGE_STATIC_LIBS "-fopenmp ")
endif()
if(RIDGE_HAVE_CUDA)
    cmake_path(GET RIDGE_CUDART PARENT_PATH cudart_dir)
    string(PREPEND RIDGE_STATIC_LIBS "-L${cudart_dir} -lcudart_static -lpthread -ldl -lrt ")
endif()
# Relative to where the file lies, so that an installed tree may be moved and --prefix works.
file(RELATIVE_PATH RIDGE_PC_PREFIX /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
configure_file(cmake/ridge.pc.in ridge.pc @ONLY)
if(RIDGE_HAVE_IO)
    configure_file(cmake/ridge_io.pc.in ridge_io.pc @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ridge_io.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
configure_package_config_file(cmake/ridge-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/ridge-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ridge)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/ridge-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ridge.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ridge-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/ridge-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ridge)
