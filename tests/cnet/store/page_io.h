/* Duties of each back end of a file of pages, by its table (store/page_io.h). */
#ifndef TESTS_PAGE_IO_H
#define TESTS_PAGE_IO_H

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "store/page_io.h"

enum { BYTES = 4096 };

/* A file that goes with the process. */
static inline int open_nameless(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    CHECK(fd >= 0, "%s: %s", folder, strerror(errno));
    return fd;
}

static inline struct page_io *open_back_end(const struct page_io_ops *ops)
{
    struct page_io *io = ops->open();
    CHECK(io, "%s: %s", ops->name, strerror(errno));
    return io;
}

/* Move as many pages as may be under way, each reaped once. */
static inline void move_all(const struct page_io_ops *ops, struct page_io *io,
                            struct page_request *requests)
{
    bool back[PAGE_IO_DEPTH] = {false};
    for (int i = 0; i < PAGE_IO_DEPTH; i++) {
        requests[i].result = -1;
        ops->submit(io, &requests[i]);
    }
    if (ops->begin)
        ops->begin(io);
    for (int i = 0; i < PAGE_IO_DEPTH; i++) {
        const struct page_request *request = ops->reap(io);
        CHECK(request >= requests && request < requests + PAGE_IO_DEPTH, "another's request");
        CHECK(!back[request - requests], "request %d twice", (int)(request - requests));
        back[request - requests] = true;
    }
}

/* Pages that are written in one order and read in the other, more than once around the rings. */
static inline void test_what_was_written_is_read(const struct page_io_ops *ops, const char *folder)
{
    static uint8_t memory[PAGE_IO_DEPTH][BYTES];
    struct page_request requests[PAGE_IO_DEPTH];
    struct page_io *io = open_back_end(ops);
    int fd = open_nameless(folder);
    for (int round = 0; round < 6; round++) {
        bool write = round % 2 == 0;
        for (int i = 0; i < PAGE_IO_DEPTH; i++) {
            int page = write ? i : PAGE_IO_DEPTH - 1 - i;
            memset(memory[i], write ? page + round : 0, BYTES);
            requests[i] = (struct page_request){.memory = memory[i],
                                                .offset = (uint64_t)page * BYTES,
                                                .bytes = BYTES,
                                                .fd = fd,
                                                .write = write};
        }
        move_all(ops, io, requests);
        for (int i = 0; i < PAGE_IO_DEPTH; i++) {
            int wanted = write ? i + round : PAGE_IO_DEPTH - 1 - i + round - 1;
            CHECK(requests[i].result == BYTES, "%s: %d", ops->name, requests[i].result);
            CHECK(memory[i][0] == wanted && memory[i][BYTES - 1] == wanted, "page %d", i);
        }
    }
    ops->close(io);
    close(fd);
}

/* The kernel's answer to a request becomes its result, whatever its neighbours are. */
static inline void test_failures_are_results_of_their_requests(const struct page_io_ops *ops,
                                                               const char *folder)
{
    static uint8_t memory[PAGE_IO_DEPTH][BYTES];
    struct page_request requests[PAGE_IO_DEPTH];
    struct page_io *io = open_back_end(ops);
    int fd = open_nameless(folder), full = open("/dev/full", O_RDWR | O_CLOEXEC);
    CHECK(!ftruncate(fd, BYTES + 100), "ftruncate");
    const struct {
        struct page_request request;
        int result;
    } cases[] = {
        {{.fd = fd}, BYTES},
        {{.fd = fd, .offset = BYTES}, 100}, /* the file ends in it */
        {{.fd = fd, .offset = 5 * BYTES}, 0},
        {{.fd = -1}, -EBADF},
        {{.fd = full, .write = true}, -ENOSPC},
    };
    const int n = sizeof cases / sizeof *cases;
    for (int i = 0; i < PAGE_IO_DEPTH; i++) {
        requests[i] = cases[i % n].request;
        requests[i].memory = memory[i];
        requests[i].bytes = BYTES;
    }
    move_all(ops, io, requests);
    for (int i = 0; i < PAGE_IO_DEPTH; i++)
        CHECK(requests[i].result == cases[i % n].result, "%s, case %d: %d", ops->name, i % n,
              requests[i].result);
    ops->close(io);
    close(fd);
    close(full);
}

#endif
