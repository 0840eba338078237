#define _GNU_SOURCE
#include "client.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/splitmix.h"

enum { RETIRED_MAX = 4096, PAGE_BYTES = 4096, CANARY = 0xa5 };

static struct {
    uint8_t *start;
    size_t bytes;
} retired[RETIRED_MAX];
static atomic_size_t retired_n;

static size_t whole_pages(size_t size)
{
    return (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

struct region region_make(size_t size)
{
    size_t bytes = whole_pages(size ? size : 1);
    uint8_t *start = mmap(NULL, bytes + 2 * PAGE_BYTES, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED || mprotect(start + PAGE_BYTES, bytes, PROT_READ | PROT_WRITE))
        fail("the client has no %zu bytes of memory", size);
    /* Its last byte is the last before the page behind; its first lies on a line. */
    size_t slack = (bytes - size) / 128 * 128;
    return (struct region){.bytes = start + PAGE_BYTES + slack, .size = size};
}

static uint8_t *start_of(const struct region *region)
{
    size_t slack = (whole_pages(region->size ? region->size : 1) - region->size) / 128 * 128;
    return region->bytes - slack;
}

void region_retire(struct region *region)
{
    uint8_t *start = start_of(region);
    size_t bytes = whole_pages(region->size ? region->size : 1);
    if (retired_n == RETIRED_MAX)
        fail("the client has retired too much memory");
    retired[retired_n].start = start;
    retired[retired_n].bytes = bytes;
    retired_n++;
    /* The pages are gone, their addresses are not given to anybody else. */
    if (mmap(start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) == MAP_FAILED)
        fail("the client cannot unmap memory");
    *region = (struct region){0};
}

void regions_forget(void)
{
    while (retired_n) {
        retired_n--;
        munmap(retired[retired_n].start - PAGE_BYTES, retired[retired_n].bytes + 2 * PAGE_BYTES);
    }
}

static void report_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    uint8_t *at = info->si_addr;
    for (size_t i = 0; i < retired_n; i++)
        if (at >= retired[i].start && at < retired[i].start + retired[i].bytes) {
            strcpy(shared->verdict, "the plugin touched a buffer after its deregMr");
            _exit(1);
        }
    signal(number, SIG_DFL);
    raise(number);
}

void region_guard(void)
{
    struct sigaction action = {.sa_sigaction = report_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

uint64_t mix(uint64_t value)
{
    return harp_splitmix(&value);
}

/* Neither half is ever 0xa5a5a5a5 (what a buffer has before): the lowest bit of each is clear. */
uint64_t payload_word(uint64_t key, size_t index)
{
    return ((key + index) * 0x9e3779b97f4a7c15u ^ key) & 0xfffffffefffffffeu;
}

void payload_fill(uint8_t *bytes, size_t size, uint64_t key)
{
    size_t words = size / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t word = payload_word(key, i);
        memcpy(bytes + 8 * i, &word, 8);
    }
    uint64_t word = payload_word(key, words);
    memcpy(bytes + 8 * words, &word, size % 8);
}

size_t payload_check(const uint8_t *bytes, size_t size, uint64_t key)
{
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = payload_word(key, at / 8);
        size_t count = size - at < 8 ? size - at : 8;
        if (memcmp(bytes + at, &word, count) == 0)
            continue;
        for (size_t i = 0; i < count; i++)
            if (bytes[at + i] != (uint8_t)(word >> 8 * i))
                return at + i;
    }
    return size;
}

void canary_fill(uint8_t *bytes, size_t size)
{
    memset(bytes, CANARY, size);
}

size_t canary_check(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != CANARY)
            return i;
    return size;
}
