/* chips.c: nominal figures of chips: what a model device has in place of hardware, and, for real devices, what no
 * attribute tells: how fast the tensor cores are. Only cost functions read them. */
#include <stdio.h>
#include <string.h>

#include "internal.h"

/* Multiply-adds a clock of an SM by mma.sync with f32 sums, of f16 or bf16, and of fp8. From NVIDIA's dense TFLOP/s
 * over SMs and boost clock: A100 312 (its white paper), A40 150, L40S 362 and 733, RTX PRO 6000 Blackwell as Ada
 * (assumed), GB10 as Ada (assumed). sm_90: measured on an H200, 640 TFLOP/s. sm_100 and sm_103: assumed to be sm_80's;
 * their full rate needs tcgen05. No fp8: the compiler emulates the fp8 mma.sync of sm_90, sm_100 and sm_103 by
 * conversions and f16 products (SASS of CUDA 13.0), while sm_89, sm_120 and sm_121 have QMMA. */
static const struct {
    int f16, fp8;
} mma[RIDGE_ARCHS] = {
    [RIDGE_ARCH_SM80] = {1024, 0},    [RIDGE_ARCH_SM86] = {512, 0},     [RIDGE_ARCH_SM89] = {512, 1024},
    [RIDGE_ARCH_SM90] = {1224, 0},    [RIDGE_ARCH_SM100] = {1024, 0},   [RIDGE_ARCH_SM103] = {1024, 0},
    [RIDGE_ARCH_SM120] = {512, 1024}, [RIDGE_ARCH_SM121] = {512, 1024},
};

/* A part of the driver's name for chips whose tensor cores have a share of what others of their architecture have:
 * GeForce cards half of the rate with f32 sums (a 4090 165 TFLOP/s of f16, by NVIDIA's Ada white paper), an H20 296
 * TFLOP/s of fp8 where 78 SMs of an H100 have 1170 (NVIDIA's data sheets). */
static const struct {
    const char *name;
    double tensor;
} shares[] = {{"GeForce", 0.5}, {"H20", 0.25}};

/* Data sheets and white papers of the vendors: SMs, L2, boost clock, memory bandwidth. A copy reaches 0.88 of HBM's and
 * 0.91 of GDDR's bandwidth (H200: measured 4149 of 4800; the others by it). The first of an architecture is
 * its model. */
typedef struct chip_row {
    const char *name, *title;
    ridge_arch arch;
    int units;
    int64_t l2_bytes;
    double clock_ghz, copy_gbps, tensor;
} chip_row;

static const chip_row chips[] = {
    {"c", "any CPU", RIDGE_ARCH_C, 1, 0, 0, 20, 0},
    {"avx2", "x86-64-v3", RIDGE_ARCH_AVX2, 8, 32 << 20, 0, 40, 0},
    {"avx512", "x86-64-v4", RIDGE_ARCH_AVX512, 16, 64 << 20, 0, 80, 0},
    {"a100", "A100 80GB", RIDGE_ARCH_SM80, 108, 40 << 20, 1.41, 1800, 1},
    {"rtx3090", "RTX 3090", RIDGE_ARCH_SM86, 82, 6 << 20, 1.70, 850, 0.5},
    {"rtx4090", "RTX 4090", RIDGE_ARCH_SM89, 128, 72 << 20, 2.52, 920, 0.5},
    {"l40s", "L40S", RIDGE_ARCH_SM89, 142, 96 << 20, 2.52, 790, 1},
    {"h200", "H200", RIDGE_ARCH_SM90, 132, 50 << 20, 1.98, 4225, 1},
    {"h100-sxm", "H100 SXM", RIDGE_ARCH_SM90, 132, 50 << 20, 1.98, 2950, 1},
    {"h100-pcie", "H100 PCIe", RIDGE_ARCH_SM90, 114, 50 << 20, 1.755, 1795, 1},
    {"gh200", "GH200 96GB", RIDGE_ARCH_SM90, 132, 50 << 20, 1.98, 3520, 1},
    {"h20", "H20", RIDGE_ARCH_SM90, 78, 60 << 20, 1.98, 3520, 0.25},
    {"b200", "B200", RIDGE_ARCH_SM100, 148, 126 << 20, 1.965, 7000, 1},
    {"b300", "B300", RIDGE_ARCH_SM103, 148, 126 << 20, 1.92, 7000, 1},
    {"rtx5090", "RTX 5090", RIDGE_ARCH_SM120, 170, 96 << 20, 2.41, 1630, 0.5},
    {"gb10", "GB10", RIDGE_ARCH_SM121, 48, 24 << 20, 2.5, 248, 1},
};

enum { CHIPS = (int)(sizeof chips / sizeof chips[0]) };

const char *ridge_chip_name(int index, ridge_backend_id *backend)
{
    if (index >= CHIPS)
        return NULL;
    *backend = ridge_arch_table[chips[index].arch].backend;
    return chips[index].name;
}

static const chip_row *find(const char *name)
{
    for (int i = 0; i < CHIPS; i++)
        if (strcmp(name, chips[i].name) == 0 || strcmp(name, ridge_arch_table[chips[i].arch].name) == 0)
            return &chips[i];
    return NULL;
}

static void set_mma(ridge_device *device)
{
    device->mma_f16 = mma[device->arch].f16 * device->tensor;
    device->mma_fp8 = mma[device->arch].fp8 * device->tensor;
}

ridge_status ridge_chip_model(ridge_device *device, const char *name)
{
    const chip_row *chip = find(name);
    char names[256] = "";
    size_t used = 0;

    if (!chip) {
        for (int i = 0; i < CHIPS; i++)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", chips[i].name);
        return ridge_fail(RIDGE_ERR_ARG, "unknown model '%.40s' (%s, or an architecture as sm90)", name, names);
    }
    device->backend_id = ridge_arch_table[chip->arch].backend;
    device->arch = chip->arch;
    device->ordinal = -1;
    device->units = chip->units;
    device->l2_bytes = chip->l2_bytes;
    device->clock_ghz = chip->clock_ghz;
    device->copy_gbps = chip->copy_gbps;
    device->tensor = chip->tensor;
    device->features = UINT32_MAX;
    set_mma(device);
    snprintf(device->name, sizeof device->name, "model of %s", chip->title);
    return RIDGE_OK;
}

/* True if the name has the part as a word of its own: "NVIDIA H20" has H20, "NVIDIA H200" has not. */
static bool has_word(const char *name, const char *part)
{
    const char *at = strstr(name, part);
    const char after = at ? at[strlen(part)] : 0;

    return at && (after == 0 || after == ' ' || after == '-');
}

void ridge_chip_fill(ridge_device *device)
{
    const chip_row *chip = find(ridge_arch_table[device->arch].name);

    if (!(device->copy_gbps > 1))
        device->copy_gbps = chip->copy_gbps;
    if (!(device->clock_ghz > 0.1))
        device->clock_ghz = chip->clock_ghz;
    device->tensor = 1;
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++)
        if (has_word(device->name, shares[i].name))
            device->tensor = shares[i].tensor;
    set_mma(device);
}
