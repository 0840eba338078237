/* Runs a fuzz target without libFuzzer: `program MUTATIONS FILE...`
 *
 * Each file is fed as it is; then MUTATIONS inputs, each a file with a few bytes flipped, set, put
 * in, cut out or taken from another file. The same arguments give the same inputs. An input that
 * crashes is left in the file crash-input. */
#define _POSIX_C_SOURCE 200809L
#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES_MAX = 1024, INPUT_MAX = 4096 };

struct input {
    size_t size;
    uint8_t bytes[INPUT_MAX];
};

static struct input *files[FILES_MAX];
static size_t files_n;
static const struct input *current;
static uint64_t random_state = 1;

static size_t random_below(size_t limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return limit ? (size_t)(random_state >> 33) % limit : 0;
}

static void read_file(const char *path)
{
    assert(files_n < FILES_MAX);
    struct input *input = malloc(sizeof *input);
    FILE *file = fopen(path, "rb");
    assert(input && file);
    input->size = fread(input->bytes, 1, INPUT_MAX, file);
    fclose(file);
    files[files_n++] = input;
}

/* Keep what crashed. Sanitizers come here too if their option abort_on_error is set. */
static void save_crash(int signal)
{
    (void)signal;
    int file = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file >= 0 && write(file, current->bytes, current->size) >= 0)
        close(file);
}

/* The input is copied to memory of exactly its size, so that the sanitizer sees a read behind it.
 */
static void feed(const struct input *input)
{
    current = input;
    uint8_t *exact = malloc(input->size + !input->size);
    assert(exact);
    memcpy(exact, input->bytes, input->size);
    LLVMFuzzerTestOneInput(exact, input->size);
    free(exact);
}

static void mutate(struct input *input)
{
    static const uint8_t telling[] = {0, 1, 2, 7, 8, 0x7f, 0x80, 0xff};
    size_t at = random_below(input->size), rest = input->size - at;
    const struct input *other = files[random_below(files_n)];
    size_t stretch = random_below(rest < 16 ? rest + 1 : 16);
    switch (random_below(5)) {
    case 0:
        if (rest)
            input->bytes[at] ^= (uint8_t)(1u << random_below(8));
        break;
    case 1:
        if (rest)
            input->bytes[at] = telling[random_below(sizeof telling)];
        break;
    case 2: /* put in */
        if (input->size + stretch <= INPUT_MAX) {
            memmove(input->bytes + at + stretch, input->bytes + at, rest);
            input->size += stretch;
        }
        break;
    case 3: /* cut out */
        memmove(input->bytes + at, input->bytes + at + stretch, rest - stretch);
        input->size -= stretch;
        break;
    case 4: /* from another */
        if (other->size >= at + stretch)
            memcpy(input->bytes + at, other->bytes + at, stretch);
        break;
    }
}

int main(int argc, char **argv)
{
    assert(argc > 2);
    signal(SIGABRT, save_crash);
    for (int i = 2; i < argc; i++)
        read_file(argv[i]);
    for (size_t i = 0; i < files_n; i++)
        feed(files[i]);
    long mutations = strtol(argv[1], NULL, 10);
    struct input input;
    for (long i = 0; i < mutations; i++) {
        input = *files[random_below(files_n)];
        for (size_t turns = 1 + random_below(6); turns > 0; turns--)
            mutate(&input);
        feed(&input);
    }
    for (size_t i = 0; i < files_n; i++)
        free(files[i]);
    return 0;
}
