/* fuzz_text.c: any text as a problem of each op, and as a tuning file. What parses must print and parse again to the
 * same call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_problem(const ridge_op_row *op, const char *text)
{
    ridge_call call, again;
    char printed[1024];
    ridge_problem problem;

    if (ridge_problem_parse(op, text, &call, &problem))
        return;
    if (ridge_problem_print(&call, NULL, printed, sizeof printed) >= (int)sizeof printed)
        abort();
    if (ridge_problem_parse(op, printed + strlen(op->name), &again, &problem) ||
        memcmp(&call, &again, sizeof call) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char file[64];
    char *text = malloc(size + 1);
    ridge_device *device;
    FILE *to;

    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    for (int op = 1; op < RIDGE_OPS; op++)
        try_problem(ridge_op_at(op), text);
    free(text);
    if (!file[0])
        snprintf(file, sizeof file, "/tmp/ridge_fuzz_%d.tsv", rand());
    to = fopen(file, "wb");
    if (to) {
        fwrite(data, 1, size, to);
        fclose(to);
        setenv("RIDGE_TUNED", file, 1);
        if (ridge_open("cpu:c", &device) == RIDGE_OK)
            ridge_close(device);
        else if (!ridge_error()[0])
            abort();
        remove(file);
    }
    return 0;
}
