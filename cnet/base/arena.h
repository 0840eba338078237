/* An engine's memory: mapped once at its start, given out in pieces, given back as a whole.
 *
 *     base                                                    base + bytes
 *      | frames .......... | states | free list | rings ... |   unused   |
 *      <------------------ used ----------------------------->
 *
 * - **Huge pages.** A network card and the CPU find a frame's physical address by page; fewer pages
 *   are fewer misses. 1 GiB pages are tried first, then 2 MiB, each if rounding up to it adds at
 *   most an eighth; then ordinary pages, for which transparent huge pages are asked. `line` says
 *   what came of it and what to do about it.
 * - **NUMA.** Memory is placed on the node that is asked for, if it has room: the node of the
 *   network card, or HARP_ARENA_LOCAL, the one that the calling thread runs on.
 * - **All at once.** Every page is there before opening returns, so that no page fault comes later,
 *   on the data path, and lack of memory shows at the start.
 * - **Fork.** A child does not inherit the memory (MADV_DONTFORK): it neither doubles it nor can it
 *   touch frames that a card may write to. Closing it in a child does nothing.
 *
 * Owner: one engine; nothing here is safe for several threads. Control plane only: opening
 * allocates.
 */
#ifndef HARP_ARENA_H
#define HARP_ARENA_H

#include <stddef.h>
#include <stdint.h>

/* MADV_POPULATE_WRITE of linux/mman.h, which not all C libraries pass on. A test puts another
 * number in its place, which the kernel refuses as it refuses this one before 5.14. */
#ifndef HARP_POPULATE_WRITE
#define HARP_POPULATE_WRITE 23
#endif

#define HARP_ARENA_LOCAL (-1)

struct harp_arena {
    uint8_t *base;
    size_t bytes; /* mapped: what was asked for, rounded up to pages */
    size_t used;
    size_t page_bytes;
    int owner;      /* process that opened it */
    char line[200]; /* one line for a log: size, pages, node, and a hint where it could be better */
};

/* Map `bytes` > 0 on NUMA node `node`. Returns 0, or -ENOMEM, and then nothing is mapped. */
int harp_arena_open(struct harp_arena *arena, size_t bytes, int node);

/* A piece of `bytes`, zeroed, aligned to `align`, a power of two up to 4096; NULL if no such piece
 * is left. It lives as long as the arena. */
void *harp_arena_take(struct harp_arena *arena, size_t bytes, size_t align);

/* Unmap. No piece may be used any more, by a card neither. */
void harp_arena_close(struct harp_arena *arena);

#endif
