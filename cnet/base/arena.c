#define _GNU_SOURCE
#include "base/arena.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of linux/mempolicy.h and linux/mman.h, which not all C libraries pass on. */
enum { MEMORY_PREFERRED = 1, NODE_OF_PAGE = 3, HUGE_SHIFT = 26 };
enum { NODES_MAX = 1024, NODE_WORD_BITS = 8 * sizeof(unsigned long), ORDINARY_BYTES = 4096 };

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

static int local_node(void)
{
    unsigned node;
    return syscall(SYS_getcpu, NULL, &node, NULL) == 0 ? (int)node : HARP_ARENA_LOCAL;
}

/* Prefer, not demand: a node that is full is no reason not to start. Whether it worked is asked of
 * the kernel afterwards. */
static void bind_to_node(void *base, size_t bytes, int node)
{
    unsigned long nodes[NODES_MAX / NODE_WORD_BITS] = {0};
    if (node < 0 || node >= NODES_MAX)
        return;
    nodes[(size_t)node / NODE_WORD_BITS] = 1UL << (size_t)node % NODE_WORD_BITS;
    (void)syscall(SYS_mbind, base, bytes, MEMORY_PREFERRED, nodes, NODES_MAX, 0);
}

/* The node that a page lies on; -1 where the kernel does not say. */
static int node_of(void *page)
{
    int node;
    return syscall(SYS_get_mempolicy, &node, NULL, 0, page, NODE_OF_PAGE) == 0 ? node : -1;
}

/* Have the kernel write to every page. Where a page cannot be had, as a huge one that the control
 * group may not use, read(2) fails; a store of our own would end the process by SIGBUS. */
static bool read_zeros(uint8_t *base, size_t bytes)
{
    int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    size_t done = 0;
    while (zeros >= 0 && done < bytes) {
        ssize_t got = read(zeros, base + done, bytes - done);
        if (got <= 0 && errno != EINTR)
            break;
        done += got > 0 ? (size_t)got : 0;
    }
    if (zeros >= 0)
        close(zeros);
    return done == bytes;
}

/* Make every page present. Kernels before 5.14 have no call for it. */
static bool populate_pages(uint8_t *base, size_t bytes)
{
    return madvise(base, bytes, HARP_POPULATE_WRITE) == 0 ||
           (errno == EINVAL && read_zeros(base, bytes));
}

/* Map on pages of 2^shift bytes, or on ordinary ones if `shift` is 0. */
static bool map_pages(struct harp_arena *arena, size_t bytes, int shift, int node)
{
    arena->page_bytes = shift ? (size_t)1 << shift : ORDINARY_BYTES;
    arena->bytes = round_up(bytes, arena->page_bytes);
    if (shift && arena->bytes - bytes > bytes / 8)
        return false;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (shift ? MAP_HUGETLB | shift << HUGE_SHIFT : 0);
    void *base = mmap(NULL, arena->bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (base == MAP_FAILED)
        return false;
    arena->base = base;
    if (!shift)
        (void)madvise(base, arena->bytes,
                      MADV_HUGEPAGE); /* a kernel without them has its own way */
    bind_to_node(base, arena->bytes, node);
    if (madvise(base, arena->bytes, MADV_DONTFORK) == 0 && populate_pages(base, arena->bytes))
        return true;
    munmap(base, arena->bytes);
    return false;
}

static void write_line(struct harp_arena *arena, int shift, int wanted)
{
    static const char *const hints[] = {
        [0] = "ordinary pages: no huge ones are free or fit, see /proc/sys/vm/nr_hugepages",
        [21] = "pages of 2 MiB",
        [30] = "pages of 1 GiB",
    };
    char where[60] = "on a node that the kernel does not report";
    int node = node_of(arena->base);
    if (node >= 0 && node == wanted)
        snprintf(where, sizeof where, "on node %d", node);
    else if (node >= 0)
        snprintf(where, sizeof where, "on node %d instead of %d", node, wanted);
    snprintf(arena->line, sizeof arena->line, "memory: %zu KiB %s, %s", arena->bytes / 1024, where,
             hints[shift]);
}

int harp_arena_open(struct harp_arena *arena, size_t bytes, int node)
{
    static const int shifts[] = {30, 21, 0};
    assert(bytes > 0);
    *arena = (struct harp_arena){.owner = getpid()};
    if (bytes > SIZE_MAX / 2)
        return -ENOMEM;
    node = node == HARP_ARENA_LOCAL ? local_node() : node;
    for (size_t i = 0; i < sizeof shifts / sizeof shifts[0]; i++) {
        if (!map_pages(arena, bytes, shifts[i], node))
            continue;
        write_line(arena, shifts[i], node);
        assert((uintptr_t)arena->base % ORDINARY_BYTES == 0);
        return 0;
    }
    *arena = (struct harp_arena){0};
    return -ENOMEM;
}

void *harp_arena_take(struct harp_arena *arena, size_t bytes, size_t align)
{
    assert(arena->base && arena->owner == getpid());
    assert(align > 0 && align <= ORDINARY_BYTES && (align & (align - 1)) == 0);
    size_t at = round_up(arena->used, align);
    if (at > arena->bytes || bytes > arena->bytes - at)
        return NULL;
    arena->used = at + bytes;
    return arena->base + at;
}

void harp_arena_close(struct harp_arena *arena)
{
    if (arena->base && arena->owner == getpid()) {
        int failed = munmap(arena->base, arena->bytes);
        assert(!failed);
        (void)failed;
    }
    *arena = (struct harp_arena){0};
}
