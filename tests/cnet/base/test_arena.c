/* The arena: what it says of itself against what the kernel says of it. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"

/* The text after `key` in the part of /proc/self/smaps about the mapping that holds `address`; NULL
 * if there is no such mapping. The caller frees it. */
static char *kernel_says(const void *address, const char *key)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    assert(smaps);
    char *line = NULL, *found = NULL;
    size_t room = 0;
    int inside = 0;
    while (!found && getline(&line, &room, smaps) > 0) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = (uintptr_t)address >= start && (uintptr_t)address < end;
        else if (inside && strncmp(line, key, strlen(key)) == 0)
            found = strdup(line + strlen(key));
    }
    free(line);
    fclose(smaps);
    return found;
}

static void memory_is_there(size_t bytes)
{
    struct harp_arena arena;
    assert(harp_arena_open(&arena, bytes, HARP_ARENA_LOCAL) == 0);
    printf("%s\n", arena.line);
    assert(arena.bytes >= bytes && arena.bytes - bytes <= bytes / 8 + 4096);
    assert(arena.bytes % arena.page_bytes == 0 && (uintptr_t)arena.base % arena.page_bytes == 0);
    char *page = kernel_says(arena.base, "KernelPageSize:");
    assert(strtoul(page, NULL, 10) * 1024 == arena.page_bytes);
    free(page);
    if (arena.page_bytes == 4096) {
        /* All of it is in memory; smaps may count neighbours of the same kind too. */
        char *present = kernel_says(arena.base, "Rss:");
        assert(strtoul(present, NULL, 10) * 1024 >= arena.bytes);
        free(present);
    }
    assert(strstr(arena.line, arena.page_bytes == 4096      ? "ordinary pages"
                              : arena.page_bytes == 1 << 21 ? "pages of 2 MiB"
                                                            : "pages of 1 GiB"));
    for (size_t at = 0; at < arena.bytes; at += 512)
        assert(arena.base[at] == 0);
    uint8_t *base = arena.base;
    harp_arena_close(&arena);
    assert(arena.base == NULL);
    assert(kernel_says(base, "Size:") == NULL);
}

static void test_pieces_do_not_overlap(void)
{
    struct harp_arena arena;
    assert(harp_arena_open(&arena, 16384, HARP_ARENA_LOCAL) == 0);
    uint8_t *a = harp_arena_take(&arena, 1, 1), *b = harp_arena_take(&arena, 10, 64),
            *c = harp_arena_take(&arena, 4096, 4096), *d = harp_arena_take(&arena, 0, 1);
    assert(a == arena.base && b == a + 64 && c == a + 4096 && d == a + 8192);
    assert(harp_arena_take(&arena, arena.bytes - 8192 + 1, 1) == NULL);
    assert(harp_arena_take(&arena, SIZE_MAX, 1) == NULL);
    assert(harp_arena_take(&arena, arena.bytes - 8192, 1) == d);
    assert(harp_arena_take(&arena, 1, 1) == NULL);
    harp_arena_close(&arena);
}

static void a_child_has_none_of_it(void)
{
    struct harp_arena arena;
    assert(harp_arena_open(&arena, 8192, HARP_ARENA_LOCAL) == 0);
    arena.base[0] = 7;
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        int there = kernel_says(arena.base, "Size:") != NULL;
        harp_arena_close(&arena); /* not the child's: nothing happens */
        _exit(there);
    }
    int status;
    assert(waitpid(child, &status, 0) == child);
    assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert(arena.base[0] == 7);
    harp_arena_close(&arena);
}

static void what_cannot_be_had(void)
{
    struct harp_arena arena;
    assert(harp_arena_open(&arena, (size_t)1 << 60, HARP_ARENA_LOCAL) == -ENOMEM);
    assert(harp_arena_open(&arena, SIZE_MAX, HARP_ARENA_LOCAL) == -ENOMEM && arena.base == NULL);
    /* A node that no machine has is a wish, not a demand, and the line says so. */
    assert(harp_arena_open(&arena, 8192, 1023) == 0);
    assert(strstr(arena.line, "instead of 1023") || strstr(arena.line, "does not report"));
    harp_arena_close(&arena);
}

int main(void)
{
    memory_is_there(10000);
    memory_is_there((size_t)4 << 20);
    test_pieces_do_not_overlap();
    a_child_has_none_of_it();
    what_cannot_be_had();
    return 0;
}
