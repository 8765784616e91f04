# ridge_lm: whole models. A library of its own, because it needs ridge_io and utf8proc and libridge needs nothing.
set(RIDGE_HAVE_LM OFF)
if(RIDGE_HAVE_IO)
    pkg_check_modules(UTF8PROC QUIET IMPORTED_TARGET libutf8proc)
endif()
if(NOT UTF8PROC_FOUND)
    message(STATUS "ridge: no utf8proc (Debian: libutf8proc-dev) or no jansson, ridge_lm is left out")
    return()
endif()
set(RIDGE_HAVE_LM ON)
file(GLOB lm CONFIGURE_DEPENDS lm/*.c)
# As for the CPU kernels: these flags change no result.
set_source_files_properties(lm/sample.c PROPERTIES COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math")
add_library(ridge_lm_objects OBJECT ${lm})
target_include_directories(ridge_lm_objects PUBLIC include)
target_compile_options(ridge_lm_objects PRIVATE ${warnings})
target_link_libraries(ridge_lm_objects PRIVATE PkgConfig::UTF8PROC)
add_library(ridge_lm_shared SHARED $<TARGET_OBJECTS:ridge_lm_objects>)
add_library(ridge_lm_static STATIC $<TARGET_OBJECTS:ridge_lm_objects>)
foreach(target ridge_lm_shared ridge_lm_static)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ridge_lm LINKER_LANGUAGE C)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
set_target_properties(ridge_lm_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0 LINK_DEPENDS
                                                 ${CMAKE_CURRENT_SOURCE_DIR}/lm/ridge_lm.map)
target_link_libraries(ridge_lm_shared PUBLIC ridge_io_shared ridge_shared PRIVATE PkgConfig::UTF8PROC ${CMAKE_DL_LIBS} m)
target_link_libraries(ridge_lm_static INTERFACE ridge_io_static ridge_static $<BUILD_INTERFACE:PkgConfig::UTF8PROC>
                                                ${CMAKE_DL_LIBS} m)
target_link_options(ridge_lm_shared PRIVATE -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/lm/ridge_lm.map
                    -Wl,--exclude-libs,ALL -Wl,--as-needed)
