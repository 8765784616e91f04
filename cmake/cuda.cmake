# Finds nvcc and turns cuda/*.cu and ops/*/*.cu into RIDGE_CUDA_OBJECTS, linked with the static runtime (RIDGE_CUDA_LIBS): the library then
# needs libc alone and loads where there is no driver. nvcc is called directly, because CMake's own CUDA support would
# link libstdc++.
set(RIDGE_CUDA AUTO CACHE STRING "CUDA kernels: AUTO, ON, OFF")
set(RIDGE_CUDA_ARCHS "80;86;89;90a;100a;103a;120a;121a;90-ptx" CACHE STRING "cubins (and one PTX) to build")
set(RIDGE_HAVE_CUDA 0)
set(RIDGE_CUDA_OBJECTS)
set(RIDGE_CUDA_LIBS)
if(RIDGE_CUDA STREQUAL "OFF")
    message(STATUS "ridge: RIDGE_CUDA=OFF, CPU-only build")
    return()
endif()
find_program(RIDGE_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
if(NOT RIDGE_NVCC)
    if(RIDGE_CUDA STREQUAL "ON")
        message(FATAL_ERROR "ridge: RIDGE_CUDA=ON, but there is no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda")
    endif()
    message(STATUS "ridge: no nvcc, CPU-only build")
    return()
endif()
set(RIDGE_HAVE_CUDA 1)
file(REAL_PATH ${RIDGE_NVCC} nvcc_real)
cmake_path(GET nvcc_real PARENT_PATH nvcc_bin)
cmake_path(GET nvcc_bin PARENT_PATH cuda_home)
find_library(RIDGE_CUDART cudart_static REQUIRED HINTS ${cuda_home}/lib64 ${cuda_home}/targets/x86_64-linux/lib
             ${cuda_home}/targets/sbsa-linux/lib /usr/local/cuda/lib64)
set(RIDGE_CUDA_LIBS ${RIDGE_CUDART} pthread dl rt)

# "90a" -> a cubin for sm_90a; "90-ptx" -> PTX that a driver compiles for anything newer.
function(ridge_gencode archs out)
    set(flags)
    foreach(arch ${archs})
        if(arch MATCHES "^([0-9]+)-ptx$")
            list(APPEND flags -gencode arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1})
        else()
            list(APPEND flags -gencode arch=compute_${arch},code=sm_${arch})
        endif()
    endforeach()
    set(${out} ${flags} PARENT_SCOPE)
endfunction()

file(GLOB cuda_sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} cuda/*.cu ops/*/*.cu)
foreach(source ${cuda_sources})
    string(REPLACE ".cu" ".o" object ${CMAKE_CURRENT_BINARY_DIR}/${source})
    cmake_path(GET object PARENT_PATH folder)
    # A suffix _smNN names the one architecture (with its 'a' features) of a file.
    if(source MATCHES "_sm([0-9]+)\\.cu$")
        ridge_gencode("${CMAKE_MATCH_1}a" gencode)
    else()
        ridge_gencode("${RIDGE_CUDA_ARCHS}" gencode)
    endif()
    add_custom_command(
        OUTPUT ${object}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
        COMMAND ${RIDGE_NVCC} -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object} -MD -MF ${object}.d -std=c++17 -O3
                -fmad=false ${gencode} --compress-mode=size -DRIDGE_HAVE_CUDA=1
                -I${CMAKE_CURRENT_SOURCE_DIR}/include -I${CMAKE_CURRENT_SOURCE_DIR}
                -Xcompiler=-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics,-Wall,-Wextra
                -Xptxas=--warn-on-spills,-Werror -t0
        DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
        DEPFILE ${object}.d
        COMMENT "nvcc ${source}"
        VERBATIM)
    list(APPEND RIDGE_CUDA_OBJECTS ${object})
endforeach()
set_source_files_properties(${RIDGE_CUDA_OBJECTS} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
