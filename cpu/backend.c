/* backend.c: the CPU as a device: what ridge_open reads from it, and memory, clocks and ceilings for the driver.
 *
 * Streams are NULL: every call has finished when it returns. There are no graphs. Leaves out: kernels (ops/). */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cpu/team.h"
#include "src/internal.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* ----------------------------------------------------------------------------------------------------------- device */

static int cpu_count(char *why_none, size_t size)
{
    if (size > 0)
        why_none[0] = '\0';
    return 1;
}

static void read_name(char *name, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");

    snprintf(name, size, "CPU");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = '\0';
        snprintf(name, size, "%s", value);
        break;
    }
    fclose(file);
}

/* Bytes of the last-level cache, 0 if the system does not say. */
static int64_t read_cache(void)
{
    int64_t bytes = 0;

    for (int index = 0; index < 8; index++) {
        char path[96], unit = 0;
        long long value = 0;
        FILE *file;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        file = fopen(path, "r");
        if (!file)
            break;
        if (fscanf(file, "%lld%c", &value, &unit) == 2) {
            int64_t size = (int64_t)value * (unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1);
            bytes = size > bytes ? size : bytes;
        }
        fclose(file);
    }
    return bytes;
}

static ridge_arch read_arch(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C); /* clang 14's cpu_supports does not know this name */

    __builtin_cpu_init();
    if (f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            return RIDGE_ARCH_AVX512;
        return RIDGE_ARCH_AVX2;
    }
#endif
    return RIDGE_ARCH_C;
}

static uint32_t read_features(void)
{
    uint32_t features = 0;
#if defined(__x86_64__)
    unsigned a, b, c, d;

    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        features |= c & 1u << 11 ? RIDGE_HAS_AVX512_VNNI : 0;
        features |= c & 1u << 1 ? RIDGE_HAS_AVX512_VBMI : 0;
    }
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4))
        features |= RIDGE_HAS_AVX_VNNI;
#endif
    return features;
}

/* More threads a call are a mistake in the environment: OpenMP's runtime ends the process where it cannot start them.
 */
enum { THREADS_MOST = 4096 };

static ridge_status cpu_open(ridge_device *device, int ordinal)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

    (void)ordinal;
    device->backend = &ridge_cpu_backend;
    device->backend_id = RIDGE_CPU;
    device->ordinal = -1;
    device->arch = read_arch();
    device->features = read_features();
    device->units = ridge_team_most(device->threads_chosen);
    device->l2_bytes = read_cache();
    device->memory_bytes = pages > 0 && page > 0 ? (int64_t)pages * page : 0;
    read_name(device->name, sizeof device->name);
    ridge_chip_fill(device);
    if (device->units > THREADS_MOST)
        return ridge_fail(RIDGE_ERR_DEVICE, "OpenMP would start %d threads (OMP_NUM_THREADS?), %d at most",
                          device->units, THREADS_MOST);
    return RIDGE_OK;
}

/* In ridge_together the call before may be at work still. */
static ridge_status cpu_enter(const ridge_device *device, bool *entered)
{
    (void)device;
    *entered = false;
    ridge_team_settle();
    return RIDGE_OK;
}

bool ridge_cpu_streams(const ridge_device *device, double bytes)
{
    const double quarter = 0.25 * (double)device->l2_bytes, most = 16 << 20;

    return bytes > (quarter > 0 && quarter < most ? quarter : most); /* 0: no size was found */
}

/* ----------------------------------------------------------------------------------------------------------- memory */

static ridge_status cpu_alloc(const ridge_device *device, size_t bytes, void **memory)
{
    (void)device;
    *memory = bytes > SIZE_MAX - 256 ? NULL : aligned_alloc(256, bytes == 0 ? 256 : (bytes + 255) / 256 * 256);
    return *memory ? RIDGE_OK : ridge_fail(RIDGE_ERR_DEVICE, "cannot allocate %zu bytes", bytes);
}

static void cpu_release(const ridge_device *device, void *memory)
{
    (void)device;
    free(memory);
}

static ridge_status cpu_transfer(const ridge_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    if (bytes > 0)
        memcpy(to, from, bytes);
    return RIDGE_OK;
}

/* Thread t of n works on bytes [start(t), start(t + 1)): whole cache lines. */
static size_t share(size_t bytes, int t, int n)
{
    return t == n ? bytes : bytes / 64 / (size_t)n * (size_t)t * 64;
}

/* The first byte of the calling thread's part; *end: where it ends. */
static size_t my_share(size_t bytes, size_t *end)
{
#ifdef _OPENMP
    const int t = omp_get_thread_num(), n = omp_get_num_threads();
#else
    const int t = 0, n = 1;
#endif

    *end = share(bytes, t + 1, n);
    return share(bytes, t, n);
}

static void copy_part(int variant, char *to, const char *from, size_t bytes)
{
    size_t i = 0;

#if defined(__SSE2__)
    if (variant == 1 && (uintptr_t)to % 16 == 0) {
        for (; i + 64 <= bytes; i += 64) {
            const __m128i *x = (const __m128i *)(const void *)(from + i);
            __m128i *y = (__m128i *)(void *)(to + i);
            __m128i a = _mm_loadu_si128(x), b = _mm_loadu_si128(x + 1);
            __m128i c = _mm_loadu_si128(x + 2), d = _mm_loadu_si128(x + 3);
            _mm_stream_si128(y, a), _mm_stream_si128(y + 1, b);
            _mm_stream_si128(y + 2, c), _mm_stream_si128(y + 3, d);
        }
        _mm_sfence();
    }
#endif
    (void)variant;
    if (bytes > i)
        memcpy(to + i, from + i, bytes - i);
}

static int copy_threads(size_t bytes)
{
    return ridge_team_begin(bytes >= 1 << 20 ? (double)bytes * 1e-4 : 0, INT64_MAX)->threads;
}

/* A copy by all threads. Variant 0: memcpy. Variant 1: stores that bypass the cache, where the processor has them. */
static ridge_status cpu_stream_copy(const ridge_device *device, int variant, void *to, const void *from, size_t bytes,
                                    void *stream)
{
    const int threads = copy_threads(bytes);

    (void)device, (void)stream, (void)threads;
#pragma omp parallel num_threads(threads)
    {
        size_t end;
        const size_t begin = my_share(bytes, &end);

        copy_part(variant, (char *)to + begin, (const char *)from + begin, end - begin);
    }
    return RIDGE_OK;
}

static ridge_status cpu_copy(const ridge_device *device, void *to, const void *from, size_t bytes, void *stream)
{
    return cpu_stream_copy(device, 0, to, from, bytes, stream);
}

/* Reads every byte. The sum goes to a volatile, so that the compiler keeps the reads. */
static uint64_t read_part(const uint64_t *x, size_t words)
{
    uint64_t sum[8] = {0};
    size_t i = 0;

    for (; i + 8 <= words; i += 8)
        for (size_t k = 0; k < 8; k++)
            sum[k] += x[i + k];
    for (; i < words; i++)
        sum[0] += x[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static ridge_status cpu_stream_read(const ridge_device *device, int variant, const void *memory, size_t bytes,
                                    void *stream)
{
    const int threads = copy_threads(bytes);
    uint64_t total = 0;
    volatile uint64_t keep;

    (void)device, (void)variant, (void)stream, (void)threads;
#pragma omp parallel reduction(+ : total) num_threads(threads)
    {
        size_t end;
        const size_t begin = my_share(bytes, &end);

        total += read_part((const uint64_t *)(const void *)((const char *)memory + begin), (end - begin) / 8);
    }
    keep = total;
    (void)keep;
    return RIDGE_OK;
}

/* ------------------------------------------------------------------------------------------------ streams and clock */

static ridge_status cpu_stream_new(const ridge_device *device, void **stream)
{
    (void)device;
    *stream = NULL;
    return RIDGE_OK;
}

static void cpu_stream_free(const ridge_device *device, void *stream)
{
    (void)device, (void)stream;
}

static ridge_status cpu_sync(const ridge_device *device, void *stream)
{
    (void)device, (void)stream;
    return RIDGE_OK;
}

/* The driver's time marks. They are the calling thread's, because devices are immutable. */
static _Thread_local struct timespec marks[64];

static ridge_status cpu_mark(const ridge_device *device, int slot, void *stream)
{
    (void)device, (void)stream;
    clock_gettime(CLOCK_MONOTONIC, &marks[slot]);
    return RIDGE_OK;
}

static ridge_status cpu_elapsed(const ridge_device *device, int from, int to, double *us)
{
    (void)device;
    *us = (double)(marks[to].tv_sec - marks[from].tv_sec) * 1e6 +
          (double)(marks[to].tv_nsec - marks[from].tv_nsec) * 1e-3;
    return RIDGE_OK;
}

const ridge_backend ridge_cpu_backend = {
    .name = "cpu",
    .count = cpu_count,
    .open = cpu_open,
    .enter = cpu_enter,
    .together = ridge_team_together,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .upload = cpu_transfer,
    .download = cpu_transfer,
    .copy = cpu_copy,
    .stream_new = cpu_stream_new,
    .stream_free = cpu_stream_free,
    .sync = cpu_sync,
    .mark = cpu_mark,
    .elapsed = cpu_elapsed,
    .stream_variants = 1,
    .stream_read = cpu_stream_read,
    .copy_variants = 2,
    .stream_copy = cpu_stream_copy,
};
