/* nonce.h: the numbers by which a launch knows what it has itself written into a workspace. */
#ifndef RIDGE_GEMM_FP8_NONCE_H
#define RIDGE_GEMM_FP8_NONCE_H

#include <stdint.h>

/* A number that no other launch of this process has, and that memory does not hold by chance. */
static inline uint64_t gemm_new_nonce(void)
{
    static uint64_t count;
    uint64_t z =
        (__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) + (uint64_t)(uintptr_t)&count) * UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (z ^ z >> 31) | 1;
}

#endif
