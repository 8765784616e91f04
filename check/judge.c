/* judge.c: whether what a run left is what the row's contract promises: the C reference's bits, or the float64 bound of
 * the family's oracle, or the bits of its model of the hardware. */
#include <stdlib.h>

#include "family.h"

static bool some_row_is_exact(uint32_t op)
{
    for (int i = 0; ridge_kernel_at(i); i++)
        if (ridge_kernel_at(i)->op == op && (ridge_kernel_at(i)->contract & RIDGE_EXACT))
            return true;
    return false;
}

ridge_status image_reference(const image *im, unsigned char *expected)
{
    ridge_device *cpu;
    ridge_call call = image_call(im, expected);
    ridge_status status = ridge_open("cpu:c", &cpu);
    size_t bytes = 0;
    void *workspace = NULL;

    if (status)
        return status;
    image_copy(expected, im->host, im->bytes);
    if (im->fill == FILL_PERIOD && !some_row_is_exact(im->call.op)) {
        ridge_close(cpu);
        return RIDGE_OK;
    }
    call.kernel = NULL;
    status = ridge_workspace_bytes(cpu, &call, &bytes);
    if (!status && bytes)
        workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!status)
        status = check_run(cpu, &call, workspace, workspace ? bytes : 0, NULL);
    free(workspace);
    ridge_close(cpu);
    return status;
}

bool image_close(const image *im, const unsigned char *got, double *worst, char *text, size_t size)
{
    oracle_run run = {im, got, 0, text, size};

    check_family_of(im->call.op)->oracle(&run);
    *worst = run.worst;
    return run.worst <= 1;
}

/* Rows must give the reference's bits on this image. */
static bool image_bitwise(const image *im, const ridge_kernel *kernel)
{
    return (kernel->contract & RIDGE_EXACT) || im->fill == FILL_EXACT;
}

bool image_judge(const image *im, const ridge_kernel *kernel, const unsigned char *expected, const unsigned char *got,
                 char *text, size_t size)
{
    const check_family *family = check_family_of(im->call.op);
    double worst = 0;

    if (image_bitwise(im, kernel))
        return image_equal(im, expected, got, text, size);
    if (!check_has_bits(kernel))
        return image_intact(im, expected, got, text, size) && image_close(im, got, &worst, text, size);
    return family->bits(im, got, text, size) &&
           (im->fill == FILL_EDGE || im->fill == FILL_SPECIAL || image_close(im, got, &worst, text, size));
}
