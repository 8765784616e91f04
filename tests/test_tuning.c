/* test_tuning.c: tuning files: which line of a problem wins, what is passed over and what is said of it. */
#include <fcntl.h>
#include <unistd.h>

#include "unit.h"
#include "src/internal.h"

static float gate[64], up[64], out[64];

static ridge_call small(void)
{
    return ridge_swiglu_fwd(1, 64, RIDGE_F32, gate, up, out);
}

/* A device that has read such a tuning file. */
static ridge_device *tuned_device(const char *spec, const char *text)
{
    char name[] = "/tmp/ridge_test_XXXXXX";
    int file = mkstemp(name);
    ridge_device *device;

    assert_true(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
    close(file);
    setenv("RIDGE_TUNED", name, 1);
    assert_int_equal(ridge_open(spec, &device), RIDGE_OK);
    unsetenv("RIDGE_TUNED");
    remove(name);
    return device;
}

/* Of the lines of one problem the first that this device can follow wins: a user's comes before those behind it. */
TEST(tuning)
{
    static const char c_first[] = "# comment\r\n\n"
                                  "swiglu_fwd rows=2 cols=64 dtype=f32\tcuda.swiglu_fwd.flat9\t1.0\n"
                                  "swiglu_fwd rows=1 cols=64 dtype=f32\tcpu.swiglu_fwd.c\t1.0\tx\n"
                                  "swiglu_fwd rows=1 cols=64 dtype=f32\tcpu.swiglu_fwd.avx2\t1.0\n";
    static const char avx2_first[] = "swiglu_fwd rows=1 cols=64 dtype=f32\tcpu.swiglu_fwd.avx2\t1.0\tx\n"
                                     "swiglu_fwd rows=1 cols=64 dtype=f32\tcpu.swiglu_fwd.c\t1.0\n";
    static const char *const picks[3][3] = {{"model:avx2", c_first, "cpu.swiglu_fwd.c"},
                                            {"model:avx2", avx2_first, "cpu.swiglu_fwd.avx2"},
                                            {"cpu:c", avx2_first, "cpu.swiglu_fwd.c"}};

    for (int i = 0; i < 3; i++) {
        ridge_device *device = tuned_device(picks[i][0], picks[i][1]);
        ridge_call call = small();
        const char *kernel;

        assert_int_equal(ridge_pick(device, &call, 0, &kernel), RIDGE_OK);
        assert_string_equal(kernel, picks[i][2]);
        assert_int_equal(device->tuned_count, 1);
        ridge_close(device);
    }
}

/* A line with flags is for calls with those flags. */
TEST(tuning_of_flags)
{
    static const char line[] = "swiglu_fwd rows=1 cols=64 dtype=f32 act=relu2\tcpu.swiglu_fwd.c\t1.0\n";
    ridge_device *device = tuned_device("model:avx2", line);
    ridge_call call = small();
    const char *kernel;

    assert_int_equal(ridge_pick(device, &call, 0, &kernel), RIDGE_OK);
    assert_string_not_equal(kernel, "cpu.swiglu_fwd.c");
    call.flags |= RIDGE_RELU2;
    assert_int_equal(ridge_pick(device, &call, 0, &kernel), RIDGE_OK);
    assert_string_equal(kernel, "cpu.swiglu_fwd.c");
    ridge_close(device);
}

/* What a device says on stderr while it reads a tuning file, where its only row is of another arithmetic. */
static size_t said_of_tuning(bool log, const char *line, char *text, size_t size)
{
    ridge_kernel other = {.name = "other", .op = RIDGE_SWIGLU_FWD, .contract = RIDGE_ARITHMETIC_1};
    const ridge_kernel *list[] = {&other};
    char name[] = "/tmp/ridge_test_XXXXXX";
    const int file = mkstemp(name), before = dup(STDERR_FILENO);
    FILE *said = tmpfile();
    ridge_device *device;
    size_t length;

    assert_true(file >= 0 && before >= 0 && said && write(file, line, strlen(line)) == (ssize_t)strlen(line));
    close(file);
    assert_int_equal(ridge_open("cpu:c", &device), RIDGE_OK);
    free((void *)device->row);
    device->row = list;
    for (int op = 0; op <= RIDGE_OPS; op++)
        device->first[op] = op > RIDGE_SWIGLU_FWD;
    device->log = log;
    fflush(stderr);
    dup2(fileno(said), STDERR_FILENO);
    assert_int_equal(ridge_tuned_load(device, name), RIDGE_OK);
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    remove(name);
    assert_int_equal(device->tuned_count, 0);
    rewind(said);
    length = fread(text, 1, size - 1, said);
    text[length] = 0;
    fclose(said);
    device->row = NULL;
    ridge_close(device);
    return length;
}

/* A line that would change the bits of results is passed over, and that is said only where RIDGE_LOG asks for it. */
TEST(tuning_that_changes_bits)
{
    static const char line[] = "swiglu_fwd rows=1 cols=64 dtype=f32\tcpu.swiglu_fwd.c\t1.0\n";
    char text[300];

    assert_int_equal(said_of_tuning(false, line, text, sizeof text), 0);
    assert_true(said_of_tuning(true, line, text, sizeof text) > 0);
    assert_non_null(strstr(text, "passed over, since cpu.swiglu_fwd.c would change the bits of results"));
}

/* What is no regular file is closed again, whatever number its descriptor has. */
TEST(tuning_from_a_directory)
{
    const int before = dup(STDIN_FILENO);
    ridge_device *device;

    assert_true(before >= 0);
    close(STDIN_FILENO);
    setenv("RIDGE_TUNED", "/tmp", 1);
    assert_int_equal(ridge_open("cpu:c", &device), RIDGE_ERR_FILE);
    unsetenv("RIDGE_TUNED");
    assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), -1);
    assert_int_equal(dup2(before, STDIN_FILENO), STDIN_FILENO);
    close(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tuning),
        cmocka_unit_test(tuning_of_flags),
        cmocka_unit_test(tuning_that_changes_bits),
        cmocka_unit_test(tuning_from_a_directory),
    };

    unsetenv("RIDGE_KERNEL");
    unsetenv("RIDGE_TUNED");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
