#define _GNU_SOURCE
#include "store/page_pool.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cgroup.h"

struct slot {
    uint8_t *shown; /* its address in a window */
    enum harp_page_state state;
};

struct harp_page_pool {
    uint8_t *base; /* all slots, one after another */
    size_t page_bytes;
    uint32_t pages;
    int memory; /* a memfd: what is mapped twice needs a name */
    struct slot slots[];
};

struct harp_page_window {
    uint8_t *base;
    size_t bytes;
};

/* The kernel gives shared memory to the last byte and then kills a process, so ask it first what is
 * left: of the host (MemAvailable of proc_meminfo(5)), and of the process's control groups. */
static uint64_t memory_left(const char **whose)
{
    char line[128];
    unsigned long long available_kib = UINT64_MAX / 1024;
    FILE *info = fopen("/proc/meminfo", "re");
    while (info && fgets(line, sizeof line, info))
        if (sscanf(line, "MemAvailable: %llu kB", &available_kib) == 1)
            break;
    if (info)
        fclose(info);
    struct cgroup_limits limits = cgroup_read("/proc/self/cgroup", "/proc/self/mountinfo");
    bool by_group = limits.memory_bytes < available_kib * 1024;
    *whose = by_group ? "control group" : "host";
    return by_group ? limits.memory_bytes : available_kib * 1024;
}

/* fallocate makes every page present, so that no page fault comes later. */
static int map_memory(struct harp_page_pool *pool)
{
    size_t bytes = pool->page_bytes * pool->pages;
    pool->memory = memfd_create("harp pages", MFD_CLOEXEC);
    if (pool->memory < 0)
        return -errno;
    if (fallocate(pool->memory, 0, 0, (off_t)bytes) != 0)
        return -errno;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pool->memory, 0);
    if (base == MAP_FAILED)
        return -errno;
    pool->base = base;
    return 0;
}

struct harp_page_pool *harp_page_pool_open(size_t page_bytes, uint32_t pages, char *why)
{
    assert(page_bytes > 0 && page_bytes % HARP_STORE_ALIGN == 0 && pages > 0);
    struct harp_page_pool *pool = calloc(1, sizeof *pool + pages * sizeof *pool->slots);
    if (!pool) {
        snprintf(why, HARP_STORE_WHY_BYTES, "no memory for the table of %u pages", pages);
        return NULL;
    }
    pool->page_bytes = page_bytes;
    pool->pages = pages;
    pool->memory = -1;
    const char *whose;
    uint64_t left = memory_left(&whose);
    int failed = left / page_bytes < pages ? -ENOMEM : map_memory(pool);
    if (!failed)
        return pool;
    if (left / page_bytes < pages)
        snprintf(why, HARP_STORE_WHY_BYTES,
                 "%u pages of %zu bytes cannot be had: the %s has %llu MiB left", pages, page_bytes,
                 whose, (unsigned long long)(left >> 20));
    else
        snprintf(why, HARP_STORE_WHY_BYTES, "%u pages of %zu bytes cannot be had: %s", pages,
                 page_bytes, strerror(-failed));
    if (pool->memory >= 0)
        close(pool->memory);
    free(pool);
    return NULL;
}

void harp_page_pool_close(struct harp_page_pool *pool)
{
    if (!pool)
        return;
    for (uint32_t i = 0; i < pool->pages; i++)
        assert(pool->slots[i].state <= HARP_PAGE_HELD);
    munmap(pool->base, pool->page_bytes * pool->pages);
    close(pool->memory);
    free(pool);
}

/* Addresses that end the process if they are touched, and cost nothing. */
static void *map_nothing(void *at, size_t bytes)
{
    int fixed = at ? MAP_FIXED : 0;
    return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
}

struct harp_page_window *harp_page_window_open(size_t bytes, char *why)
{
    assert(bytes > 0 && bytes % HARP_STORE_ALIGN == 0);
    struct harp_page_window *window = calloc(1, sizeof *window);
    void *base = window ? map_nothing(NULL, bytes) : MAP_FAILED;
    if (base == MAP_FAILED) {
        snprintf(why, HARP_STORE_WHY_BYTES, "%zu bytes of addresses cannot be had: %s", bytes,
                 strerror(errno));
        free(window);
        return NULL;
    }
    window->base = base;
    window->bytes = bytes;
    return window;
}

void harp_page_window_close(struct harp_page_window *window)
{
    if (!window)
        return;
    munmap(window->base, window->bytes);
    free(window);
}

void *harp_page_window_base(const struct harp_page_window *window)
{
    return window->base;
}

static struct slot *find_slot(struct harp_page_pool *pool, uint32_t slot)
{
    assert(slot < pool->pages);
    return &pool->slots[slot];
}

static void change_state(struct harp_page_pool *pool, uint32_t slot, enum harp_page_state from,
                         enum harp_page_state to)
{
    struct slot *found = find_slot(pool, slot);
    assert(found->state == from);
    found->state = to;
}

void harp_page_take(struct harp_page_pool *pool, uint32_t slot)
{
    change_state(pool, slot, HARP_PAGE_FREE, HARP_PAGE_HELD);
}

void harp_page_give(struct harp_page_pool *pool, uint32_t slot)
{
    change_state(pool, slot, HARP_PAGE_HELD, HARP_PAGE_FREE);
}

void harp_page_lend(struct harp_page_pool *pool, uint32_t slot)
{
    change_state(pool, slot, HARP_PAGE_HELD, HARP_PAGE_LENT);
}

void harp_page_return(struct harp_page_pool *pool, uint32_t slot)
{
    change_state(pool, slot, HARP_PAGE_LENT, HARP_PAGE_HELD);
}

/* MAP_POPULATE fills the page tables at once: a fault for each 4 KiB would cost more than a copy.
 */
int harp_page_show(struct harp_page_pool *pool, uint32_t slot, struct harp_page_window *window,
                   size_t offset)
{
    struct slot *found = find_slot(pool, slot);
    assert(found->state == HARP_PAGE_HELD && offset % pool->page_bytes == 0);
    assert(offset + pool->page_bytes <= window->bytes);
    void *at =
        mmap(window->base + offset, pool->page_bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED | MAP_POPULATE, pool->memory, (off_t)(slot * pool->page_bytes));
    if (at == MAP_FAILED)
        return -errno;
    found->shown = at;
    found->state = HARP_PAGE_SHOWN;
    return 0;
}

int harp_page_hide(struct harp_page_pool *pool, uint32_t slot)
{
    struct slot *found = find_slot(pool, slot);
    assert(found->state == HARP_PAGE_SHOWN);
    if (map_nothing(found->shown, pool->page_bytes) == MAP_FAILED)
        return -errno;
    found->shown = NULL;
    found->state = HARP_PAGE_HELD;
    return 0;
}

enum harp_page_state harp_page_state(const struct harp_page_pool *pool, uint32_t slot)
{
    assert(slot < pool->pages);
    return pool->slots[slot].state;
}

uint8_t *harp_page_bytes(const struct harp_page_pool *pool, uint32_t slot)
{
    assert(harp_page_state(pool, slot) != HARP_PAGE_FREE);
    return pool->base + slot * pool->page_bytes;
}

void harp_page_copy(struct harp_page_pool *to, uint32_t to_slot, struct harp_page_pool *from,
                    uint32_t from_slot)
{
    assert(to->page_bytes == from->page_bytes);
    assert(harp_page_state(to, to_slot) == HARP_PAGE_HELD);
    assert(harp_page_state(from, from_slot) == HARP_PAGE_HELD);
    memcpy(harp_page_bytes(to, to_slot), harp_page_bytes(from, from_slot), to->page_bytes);
}
