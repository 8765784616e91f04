# ridge_io: checkpoint files. A library of its own, because it needs jansson and libridge needs nothing.
set(RIDGE_HAVE_IO OFF)
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
    pkg_check_modules(JANSSON QUIET IMPORTED_TARGET GLOBAL "jansson>=2.11")
endif()
if(NOT JANSSON_FOUND)
    message(STATUS "ridge: no jansson (Debian: libjansson-dev), ridge_io is left out")
    return()
endif()
set(RIDGE_HAVE_IO ON)
file(GLOB io CONFIGURE_DEPENDS io/*.c)
# As for the CPU kernels: these flags change no result.
set_source_files_properties(io/dequantize.c io/quantize.c
                            PROPERTIES COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math;-fopenmp-simd")
add_library(ridge_io_objects OBJECT ${io})
target_include_directories(ridge_io_objects PUBLIC include PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_options(ridge_io_objects PRIVATE ${warnings})
target_link_libraries(ridge_io_objects PRIVATE PkgConfig::JANSSON)
add_library(ridge_io_shared SHARED $<TARGET_OBJECTS:ridge_io_objects>)
add_library(ridge_io_static STATIC $<TARGET_OBJECTS:ridge_io_objects>)
foreach(target ridge_io_shared ridge_io_static)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ridge_io LINKER_LANGUAGE C)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
set_target_properties(ridge_io_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0 LINK_DEPENDS
                                                 ${CMAKE_CURRENT_SOURCE_DIR}/io/ridge_io.map)
target_link_libraries(ridge_io_shared PRIVATE PkgConfig::JANSSON m)
target_link_libraries(ridge_io_static INTERFACE $<BUILD_INTERFACE:PkgConfig::JANSSON> m)
add_library(ridge::io ALIAS ridge_io_shared)
add_library(ridge::io_static ALIAS ridge_io_static)
target_link_options(ridge_io_shared PRIVATE -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/io/ridge_io.map
                    -Wl,--exclude-libs,ALL -Wl,--as-needed)
