/* Feeds files to a fuzz target, where there is no libFuzzer: `program FILE...`
 *
 * Each input lies in memory of exactly its size, so that the sanitizer sees a read behind it. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void feed_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert(file);
    assert(fseek(file, 0, SEEK_END) == 0);
    long size = ftell(file);
    assert(size >= 0);
    rewind(file);
    uint8_t *input = malloc((size_t)size + (size == 0));
    assert(input && fread(input, 1, (size_t)size, file) == (size_t)size);
    fclose(file);
    LLVMFuzzerTestOneInput(input, (size_t)size);
    free(input);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        feed_file(argv[i]);
    return 0;
}
