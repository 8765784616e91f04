# Finds nvcc and turns cuda/*.cu and ops/*/*.cu into RIDGE_CUDA_OBJECTS, linked with the static runtime (RIDGE_CUDA_LIBS):
# the library then needs only libc and loads where there is no driver. nvcc is called directly, because CMake's own CUDA
# support would link libstdc++.
#
# RIDGE_CUDA        AUTO builds the CUDA kernels where there is an nvcc and a GPU; ON wherever there is an nvcc; OFF never.
# RIDGE_CUDA_ARCHS  "native": the architecture of this machine's GPU; "release": all of them; or a list of "90a" (a cubin
#                   for sm_90a) and "100-ptx" (PTX, which a driver compiles for what is newer). Empty: native where there is
#                   a GPU, else release.
# RIDGE_CUDA_COMPRESS  of fat binaries: "size", or "balance", a third larger and a hundred times as fast, which is 5 % of
#                   nvcc's time (quantize_fp8/tile.cu, three architectures: 8.7 MB to 1.04 in 6.5 s, to 1.38 in 0.1).
#
# The release list has no 86, 103 and 121: those chips run the cubins of 80, 100 and 120, and no source uses an instruction
# or takes a branch that only theirs would have. For the same reason only families of FP8 operands are compiled for 89,
# and device.cu, which tells the two apart. What this nvcc does not know is left out: before CUDA 12.8 that is 100 and 120.
# Its PTX is that of 100, for chips after Blackwell: it costs no pass of its own beside the cubin.
set(RIDGE_CUDA AUTO CACHE STRING "CUDA kernels: AUTO, ON, OFF")
set(RIDGE_CUDA_ARCHS "" CACHE STRING "native, release, or a list such as 80;90a;100-ptx")
set(RIDGE_CUDA_COMPRESS size CACHE STRING "size, or balance: larger and faster to compile")
set(release 80 89 90a 100 120 100-ptx)
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

# The release architectures that the GPUs of this machine run, "9.0" -> "90a"; empty where there is no GPU.
function(ridge_native out)
    set(found)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE caps ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
    if(NOT failed)
        string(REGEX MATCHALL "[0-9]+\\.[0-9]" caps "${caps}")
        foreach(cap ${caps})
            string(REPLACE "." "" cap ${cap})
            set(best)
            foreach(arch ${release})
                string(REGEX MATCH "^[0-9]+" number ${arch})
                math(EXPR major "${cap} / 10 * 10")
                if(NOT arch MATCHES "ptx" AND number GREATER_EQUAL major AND NOT number GREATER cap)
                    set(best ${arch})
                endif()
            endforeach()
            if(NOT best)
                set(best 100-ptx)
            endif()
            list(APPEND found ${best})
        endforeach()
        list(REMOVE_DUPLICATES found)
    endif()
    set(${out} "${found}" PARENT_SCOPE)
endfunction()

ridge_native(native)
if(RIDGE_CUDA STREQUAL "AUTO" AND NOT native)
    message(STATUS "ridge: no GPU here, CPU-only build (make CUDA=1, or -DRIDGE_CUDA=ON, compiles the CUDA kernels too)")
    return()
endif()
string(REPLACE "," ";" archs "${RIDGE_CUDA_ARCHS}")
if("${archs}" STREQUAL "native" AND NOT native)
    message(FATAL_ERROR "ridge: RIDGE_CUDA_ARCHS=native, but nvidia-smi shows no GPU")
elseif(native AND "${archs}" MATCHES "^(native)?$")
    set(archs ${native})
elseif("${archs}" MATCHES "^(release)?$")
    set(archs ${release})
endif()
execute_process(COMMAND ${RIDGE_NVCC} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
set(unknown)
foreach(arch ${archs})
    if(NOT arch MATCHES "^([0-9]+)(a|f|-ptx)?$")
        message(FATAL_ERROR "ridge: RIDGE_CUDA_ARCHS: '${arch}' is not of the form 80, 90a or 100-ptx")
    elseif(known MATCHES "compute_" AND NOT known MATCHES "compute_${CMAKE_MATCH_1}[^0-9]")
        list(APPEND unknown ${arch})
    endif()
endforeach()
if(unknown)
    list(REMOVE_ITEM archs ${unknown})
    if(NOT archs)
        message(FATAL_ERROR "ridge: ${RIDGE_NVCC} knows none of the architectures ${unknown}")
    endif()
    if(unknown MATCHES "ptx" AND NOT archs MATCHES "ptx") # newer chips still get something
        list(APPEND archs 90-ptx)
    endif()
    message(STATUS "ridge: this nvcc does not know ${unknown}: left out")
endif()
# Code older than a GPU has empty bodies where a kernel needs the GPU's own features; the table of kernels knows only the GPU.
foreach(arch ${archs})
    if(arch MATCHES "^([0-9]+)-ptx$" AND CMAKE_MATCH_1 LESS 90)
        message(FATAL_ERROR "ridge: RIDGE_CUDA_ARCHS: ${arch}: PTX begins at 90-ptx; newer GPUs would run older code without kernels of theirs")
    elseif(arch MATCHES "^90(-ptx)?$" AND NOT "90a" IN_LIST archs)
        message(FATAL_ERROR "ridge: RIDGE_CUDA_ARCHS: ${arch} needs 90a beside it: without it Hopper's kernels are empty")
    endif()
endforeach()
message(STATUS "ridge: CUDA kernels for ${archs}")

set(RIDGE_HAVE_CUDA 1)
file(REAL_PATH ${RIDGE_NVCC} nvcc_real)
cmake_path(GET nvcc_real PARENT_PATH nvcc_bin)
cmake_path(GET nvcc_bin PARENT_PATH cuda_home)
find_library(RIDGE_CUDART cudart_static REQUIRED HINTS ${cuda_home}/lib64 ${cuda_home}/targets/x86_64-linux/lib
             ${cuda_home}/targets/sbsa-linux/lib /usr/local/cuda/lib64)
set(RIDGE_CUDA_LIBS ${RIDGE_CUDART} pthread dl rt)
# Smaller fat binaries where nvcc can (12.9 and later): libridge.so for sm_90a alone had 4.2 MB instead of 34.5, for the
# release list 10.4 instead of 120.9. docs/measured.md, Build and hosts, has the time of ridge_open.
execute_process(COMMAND ${RIDGE_NVCC} --help OUTPUT_VARIABLE nvcc_help ERROR_QUIET)
set(compress)
if(nvcc_help MATCHES "--compress-mode")
    set(compress --compress-mode=${RIDGE_CUDA_COMPRESS})
    if(NOT RIDGE_CUDA_COMPRESS STREQUAL "size") # which implies it
        list(APPEND compress -Xfatbin=--compress-all)
    endif()
endif()

# Spills are errors with the compiler that the kernels were written for. Others allocate registers differently: 12.4
# spills 4 to 88 bytes in a few kernels, which must not end a build.
execute_process(COMMAND ${RIDGE_NVCC} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
set(spills --warn-on-spills)
if(nvcc_version MATCHES "release 13\\.0")
    set(spills --warn-on-spills,-Werror)
endif()

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
    # A suffix _smNN: kernels for only that architecture, with its 'a' features. Without it in the list they are empty.
    set(only)
    if(source MATCHES "_sm([0-9]+)\\.cu$")
        set(only ${CMAKE_MATCH_1}a)
    endif()
    if(only IN_LIST archs)
        ridge_gencode(${only} gencode)
    else()
        set(of_source ${archs})
        if("80" IN_LIST archs AND NOT source MATCHES "_fp8/|cuda/device")
            list(REMOVE_ITEM of_source 89)
        endif()
        ridge_gencode("${of_source}" gencode)
    endif()
    add_custom_command(
        OUTPUT ${object}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
        COMMAND ${RIDGE_NVCC} -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object} -MD -MF ${object}.d -std=c++17 -O3
                -fmad=false ${gencode} ${compress} -DRIDGE_HAVE_CUDA=1
                -I${CMAKE_CURRENT_SOURCE_DIR}/include -I${CMAKE_CURRENT_SOURCE_DIR}
                -Xcompiler=-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics,-Wall,-Wextra
                -Xptxas=${spills} -t0
        DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
        DEPFILE ${object}.d
        COMMENT "nvcc ${source}"
        VERBATIM)
    list(APPEND RIDGE_CUDA_OBJECTS ${object})
endforeach()
set_source_files_properties(${RIDGE_CUDA_OBJECTS} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
