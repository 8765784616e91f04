/* consumer_io.c: a program that knows only the installed ridge_io.h. Valid C and C++. */
#include <stdio.h>
#include <string.h>

#include <ridge_io.h>

int main(int count, char **arguments)
{
    const char *path = count > 1 ? arguments[1] : "consumer.safetensors";
    const int64_t shape[2] = {1, 3};
    int64_t index = 0;
    char back[3] = {0, 0, 0};
    ridge_writer *writer;
    ridge_file *file;

    if (ridge_writer_open(path, RIDGE_SAFETENSORS, &writer) != RIDGE_OK ||
        ridge_writer_tensor(writer, "w", RIDGE_TYPE_U8, 2, shape, &index) != RIDGE_OK ||
        ridge_writer_begin(writer) != RIDGE_OK || ridge_writer_write(writer, index, 0, "abc", 3) != RIDGE_OK ||
        ridge_writer_finish(writer) != RIDGE_OK || ridge_file_open(path, &file) != RIDGE_OK ||
        ridge_file_read(file, ridge_file_find(file, "w"), 0, back, 3) != RIDGE_OK) {
        fprintf(stderr, "%s\n", ridge_io_error());
        return 1;
    }
    ridge_file_close(file);
    remove(path);
    return memcmp(back, "abc", 3) != 0;
}
