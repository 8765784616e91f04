# ridge_dist: calls over several devices, on the program's own engine. It needs libridge alone; the adapters for MPI and
# NCCL are headers that the program compiles.
file(GLOB dist CONFIGURE_DEPENDS dist/*.c)
add_library(ridge_dist_objects OBJECT ${dist})
target_include_directories(ridge_dist_objects PUBLIC include)
target_compile_options(ridge_dist_objects PRIVATE ${warnings})
add_library(ridge_dist_shared SHARED $<TARGET_OBJECTS:ridge_dist_objects>)
add_library(ridge_dist_static STATIC $<TARGET_OBJECTS:ridge_dist_objects>)
foreach(target ridge_dist_shared ridge_dist_static)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ridge_dist LINKER_LANGUAGE C)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
set_target_properties(ridge_dist_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0 LINK_DEPENDS
                                                   ${CMAKE_CURRENT_SOURCE_DIR}/dist/ridge_dist.map)
target_link_libraries(ridge_dist_shared PUBLIC ridge_shared)
target_link_libraries(ridge_dist_static INTERFACE ridge_static)
add_library(ridge::dist ALIAS ridge_dist_shared)
add_library(ridge::dist_static ALIAS ridge_dist_static)
target_link_options(ridge_dist_shared PRIVATE -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/dist/ridge_dist.map
                    -Wl,--exclude-libs,ALL -Wl,--as-needed)
