/* Pages by io_uring, which is spoken directly: two rings in memory shared with the kernel
 * (io_uring(7)). Entries go to the submission ring, results come from the completion ring. The
 * tails that we write are released, those that the kernel writes are acquired. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/page_io.h"

struct page_io {
    int fd;
    uint8_t *rings; /* both rings, IORING_FEAT_SINGLE_MMAP: Linux 5.4 */
    size_t rings_bytes;
    struct io_uring_sqe *entries;
    size_t entries_bytes;
    struct io_uring_params params;
    uint32_t submitted; /* entries that the kernel has not been handed yet */
};

static uint32_t *ring_word(const struct page_io *io, uint32_t offset)
{
    return (uint32_t *)(void *)(io->rings + offset);
}

static void close_ring(struct page_io *io)
{
    if (io->entries)
        munmap(io->entries, io->entries_bytes);
    if (io->rings)
        munmap(io->rings, io->rings_bytes);
    if (io->fd >= 0)
        close(io->fd);
    free(io);
}

static void *map_ring(const struct page_io *io, size_t bytes, uint64_t which)
{
    void *at =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, io->fd, (off_t)which);
    return at == MAP_FAILED ? NULL : at;
}

static bool map_rings(struct page_io *io)
{
    const struct io_uring_params *params = &io->params;
    size_t submit = params->sq_off.array + params->sq_entries * sizeof(uint32_t);
    size_t complete = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    io->rings_bytes = submit > complete ? submit : complete;
    io->rings = map_ring(io, io->rings_bytes, IORING_OFF_SQ_RING);
    io->entries_bytes = params->sq_entries * sizeof *io->entries;
    io->entries = map_ring(io, io->entries_bytes, IORING_OFF_SQES);
    return io->rings && io->entries;
}

/* IORING_OP_READ and IORING_OP_WRITE are of Linux 5.6, as this feature is of 5.7. */
static struct page_io *open_ring(void)
{
    struct page_io *io = calloc(1, sizeof *io);
    if (!io)
        return NULL;
    io->fd = (int)syscall(SYS_io_uring_setup, PAGE_IO_DEPTH, &io->params);
    bool works = io->fd >= 0;
    if (works && !(io->params.features & IORING_FEAT_FAST_POLL)) {
        errno = ENOSYS;
        works = false;
    }
    if (works && map_rings(io))
        return io;
    int error = errno;
    close_ring(io);
    errno = error;
    return NULL;
}

/* Hand over what was submitted, and wait for `wait` results. */
static void enter_ring(struct page_io *io, uint32_t wait)
{
    uint32_t flags = wait ? IORING_ENTER_GETEVENTS : 0;
    int taken = (int)syscall(SYS_io_uring_enter, io->fd, io->submitted, wait, flags, NULL, 0);
    assert(taken >= 0 || errno == EINTR || errno == EAGAIN || errno == EBUSY);
    if (taken > 0)
        io->submitted -= (uint32_t)taken;
}

static void begin_in_ring(struct page_io *io)
{
    while (io->submitted)
        enter_ring(io, 0);
}

/* There is room: no more requests are under way than the ring has entries. */
static void submit_to_ring(struct page_io *io, struct page_request *request)
{
    const struct io_sqring_offsets *at = &io->params.sq_off;
    uint32_t *tail = ring_word(io, at->tail);
    uint32_t index = *tail & *ring_word(io, at->ring_mask);
    io->entries[index] = (struct io_uring_sqe){
        .opcode = request->write ? IORING_OP_WRITE : IORING_OP_READ,
        .fd = request->fd,
        .addr = (uintptr_t)request->memory,
        .len = (uint32_t)request->bytes,
        .off = request->offset,
        .user_data = (uintptr_t)request,
    };
    ring_word(io, at->array)[index] = index;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    io->submitted++;
}

static struct page_request *reap_from_ring(struct page_io *io)
{
    const struct io_cqring_offsets *at = &io->params.cq_off;
    uint32_t *head = ring_word(io, at->head), *tail = ring_word(io, at->tail);
    while (*head == __atomic_load_n(tail, __ATOMIC_ACQUIRE))
        enter_ring(io, 1);
    const struct io_uring_cqe *cqes = (const void *)(io->rings + at->cqes);
    const struct io_uring_cqe *cqe = &cqes[*head & *ring_word(io, at->ring_mask)];
    struct page_request *request = (struct page_request *)(uintptr_t)cqe->user_data;
    request->result = cqe->res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return request;
}

const struct page_io_ops page_io_ring = {
    .name = "io_uring",
    .open = open_ring,
    .submit = submit_to_ring,
    .begin = begin_in_ring,
    .reap = reap_from_ring,
    .close = close_ring,
};
