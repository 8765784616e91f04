# The Python package: its libraries, and where a wheel (scikit-build-core) wants them. The package is ctypes and does not
# depend on a Python version.
add_custom_target(python DEPENDS ridge_shared)
if(SKBUILD)
    # A wheel holds no symbolic links: the file takes the name that the loader asks for.
    install(FILES $<TARGET_FILE:ridge_shared> DESTINATION ridge RENAME libridge.so.0 COMPONENT python)
endif()
