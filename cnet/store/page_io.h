/* Declarations that page_file.c and its two backends share. Files call downwards:
 *
 *   page_file.c  opens, begins, waits, says what went wrong
 *   ring_io.c    io_uring
 *   thread_io.c  threads
 */
#ifndef HARP_STORE_PAGE_IO_H
#define HARP_STORE_PAGE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A read or write of a page. From submit to reap it is the back end's. */
struct page_request {
    uint8_t *memory;
    uint64_t offset; /* in the file */
    size_t bytes;
    struct page_request *next; /* a back end's list */
    int fd;
    int result; /* bytes moved, or -errno */
    bool write;
};

/* At most this many requests are under way: 256 MiB of pages, far more than a disk needs. */
#define PAGE_IO_DEPTH 64

struct page_io;

struct page_io_ops {
    const char *name;
    struct page_io *(*open)(void); /* NULL with errno */
    void (*submit)(struct page_io *io, struct page_request *request);
    /* Have what was submitted begin; a reap does so, too. NULL where it begins at once. */
    void (*begin)(struct page_io *io);
    /* Wait for any request; there is one. */
    struct page_request *(*reap)(struct page_io *io);
    void (*close)(struct page_io *io); /* nothing is under way */
};

extern const struct page_io_ops page_io_ring, page_io_threads;

#endif
