# The Python package: its libraries, and where a wheel (scikit-build-core) wants them. The package is ctypes and does not
# depend on a Python version; the JAX handler declares XLA's call interface itself and depends on no jaxlib.
add_library(ridge_jax SHARED python/jax_ffi.c)
find_package(Threads REQUIRED)
target_link_libraries(ridge_jax PRIVATE ridge_shared Threads::Threads)
target_compile_options(ridge_jax PRIVATE ${warnings})
set_target_properties(ridge_jax PROPERTIES BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
add_custom_target(python DEPENDS ridge_shared ridge_jax)
if(RIDGE_HAVE_IO)
    add_dependencies(python ridge_io_shared)
endif()
if(SKBUILD)
    # A wheel holds no symbolic links: the library takes the name that the loader asks for.
    install(FILES $<TARGET_FILE:ridge_shared> DESTINATION ridge RENAME libridge.so.0 COMPONENT python)
    if(RIDGE_HAVE_IO)
        install(FILES $<TARGET_FILE:ridge_io_shared> DESTINATION ridge RENAME libridge_io.so.0 COMPONENT python)
    endif()
    install(TARGETS ridge_jax LIBRARY DESTINATION ridge COMPONENT python)
endif()
