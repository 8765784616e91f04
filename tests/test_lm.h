/* test_lm.h: small models of every family, which the tests of ridge_lm open. */
#ifndef TEST_LM_H
#define TEST_LM_H

#include <math.h>
#include <unistd.h>

#include "lm_model.h"
#include "ridge_lm.h"
#include "unit.h"

static ridge_device *cpu;
static const char *const families[] = {"llama",   "qwen2",   "qwen3",      "gemma3",   "qwen3moe",
                                       "gpt-oss", "llama:k", "qwen3moe:k", "gemma3:4", "gpt-oss:4"};
enum { FAMILIES = sizeof families / sizeof families[0] };

static inline const char *path_of(const char *family)
{
    static char path[128];

    snprintf(path, sizeof path, "test-lm-%s-%d.gguf", family, (int)getpid());
    return path;
}

static inline ridge_lm *open_family(const char *family)
{
    ridge_lm *lm;

    if (ridge_lm_open(path_of(family), cpu, NULL, &lm))
        fail_msg("%s", ridge_lm_error());
    return lm;
}

static inline int32_t vocabulary(const ridge_lm *lm)
{
    ridge_lm_info info = {.struct_size = sizeof info};

    assert_int_equal(ridge_lm_query(lm, &info), RIDGE_OK);
    return info.vocabulary;
}

static inline int32_t some_token(int i)
{
    return (int32_t)(7 + i * 37 % 250);
}

/* Runs tests with the files there. */
#define run_with_models(tests) (models_write() ? 1 : models_remove(cmocka_run_group_tests(tests, NULL, NULL)))

static inline int models_write(void)
{
    if (ridge_open("cpu", &cpu) != RIDGE_OK)
        return 1;
    for (int i = 0; i < FAMILIES; i++)
        lm_model_write(path_of(families[i]), families[i], NULL);
    return 0;
}

static inline int models_remove(int status)
{
    for (int i = 0; i < FAMILIES; i++)
        remove(path_of(families[i]));
    ridge_close(cpu);
    return status;
}

#endif
