# The vector code of a family, ops/<family>/cpu_simd.h, compiled once for each instruction set that its line
# " * Compiled for: avx2, avx512." names. RIDGE_SIMD(name) in it is name_<level>, and RIDGE_SIMD_<level> is 1. Which one
# runs is chosen at run time, by rows.
#
# These flags change no result: there are no traps to preserve and no errno, and contraction stays off.
set(cpu_options $<IF:$<CONFIG:Debug>,-O1,-O3> -fno-math-errno -fno-trapping-math)
set(simd_options ${cpu_options})
if(RIDGE_SANITIZE) # the checks in unrolled vector code cost gcc up to 43 s a file at -O3, 7 s at -O1
    set(cpu_options -O2 -fno-math-errno -fno-trapping-math)
    set(simd_options -O1 -fno-math-errno -fno-trapping-math)
endif()
# The tests of tests/other.sh run one level, whose sources are those of the others, or one family: the rest would be most
# of vector code's time.
set(RIDGE_SANITIZE_SIMD . CACHE STRING "pattern of <family>_<level>, the vector code that sanitizers look at")
if(RIDGE_FUZZ) # a fuzzer follows what reads files and problems; kernels would only be slower
    list(APPEND cpu_options -fno-sanitize=fuzzer-no-link)
    list(APPEND simd_options -fno-sanitize=fuzzer-no-link)
endif()
set(simd_sources)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND NOT RIDGE_SANITIZE) # 5 to 13 % on the SiLU rows (docs/lessons.md)
        set(schedule -fschedule-insns -fsched-pressure)
    endif()
    set(flags_avx2 -mavx2 -mfma -mf16c)
    set(flags_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512)
    set(flags_avxvnni ${flags_avx2} -mavxvnni)
    set(flags_avx512vbmi ${flags_avx512} -mavx512vbmi)
    set(flags_avx512vnni ${flags_avx512} -mavx512vnni)
    set(flags_vnni256 ${flags_avx512vnni})
    file(GLOB headers CONFIGURE_DEPENDS ops/*/cpu_simd.h)
    foreach(header ${headers})
        cmake_path(GET header PARENT_PATH family)
        cmake_path(GET family FILENAME family)
        file(STRINGS ${header} levels REGEX "Compiled for: ")
        string(REGEX REPLACE "^.*Compiled for: ([a-z0-9, ]*)[.].*$" "\\1" levels "${levels}")
        string(REPLACE ", " ";" levels "${levels}")
        foreach(level ${levels})
            set(source ${CMAKE_CURRENT_BINARY_DIR}/simd/${family}_${level}.c)
            file(CONFIGURE OUTPUT ${source} CONTENT
"#define RIDGE_SIMD(name) name##_${level}
#define RIDGE_SIMD_${level} 1
#include \"ops/${family}/cpu_simd.h\"
")
            set(unchecked)
            if(NOT "${family}_${level}" MATCHES "${RIDGE_SANITIZE_SIMD}")
                set(unchecked -fno-sanitize=all)
            endif()
            set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
                                        "${simd_options};${flags_${level}};${schedule};${unchecked}")
            list(APPEND simd_sources ${source})
        endforeach()
    endforeach()
endif()
