/* Pages on disk: a file of whole pages, read and written one by one.
 *
 * The file is made at opening, with all its room (fallocate), so that a full disk is an error then
 * and not in the middle of training; it has no name from then on and goes with the process. It is
 * opened with O_DIRECT where the file system has it, so that a page does not take memory a second
 * time, in the kernel's cache.
 *
 *   begin(page, memory) ... begin(other page, memory) ... wait(page) ... wait(other page)
 *
 * Reads and writes of different pages are under way at once, by io_uring (ring_io.c) or, where a
 * container forbids that, by threads with pread and pwrite (thread_io.c); `line` says which. A page
 * has at most one under way: begin and wait alternate for each page. Each begins at once, which is
 * a system call; between hold and release they gather, and begin together.
 *
 * An error (EIO, ENOSPC, a file that was truncated) is the result of that page's wait: -errno and a
 * sentence that names file and page. The page may be tried again.
 *
 * Owner: one thread calls. Memory of a page is the kernel's from begin to wait.
 */
#ifndef HARP_STORE_PAGE_FILE_H
#define HARP_STORE_PAGE_FILE_H

#include "store/page_pool.h"

/* cdef: begin */
struct harp_page_file;

enum harp_page_io {
    HARP_PAGE_IO_AUTO,
    HARP_PAGE_IO_RING,
    HARP_PAGE_IO_THREADS,
};

/* Make a file in `folder`. Returns NULL with a sentence in `why`. */
struct harp_page_file *harp_page_file_open(const char *folder, size_t page_bytes, uint32_t pages,
                                           enum harp_page_io io, char *why);
/* Make room for `pages` more, while nothing is under way. Returns 0, or -errno with a sentence in
 * `why`; then the file has the pages that it had. */
int harp_page_file_grow(struct harp_page_file *file, uint32_t pages, char *why);
/* Memory of its own. */
size_t harp_page_file_bytes(const struct harp_page_file *file);
/* Waits for what is under way. */
void harp_page_file_close(struct harp_page_file *file);
/* How it reads and writes, for a log. */
const char *harp_page_file_line(const struct harp_page_file *file);
/* For tests that put another file in its place. */
int harp_page_file_fd(const struct harp_page_file *file);

void harp_page_file_read(struct harp_page_file *file, uint32_t page, uint8_t *memory);
void harp_page_file_write(struct harp_page_file *file, uint32_t page, uint8_t *memory);
/* Let reads and writes gather until the release, or until a wait needs one of them. */
void harp_page_file_hold(struct harp_page_file *file);
void harp_page_file_release(struct harp_page_file *file);
/* Wait for what was begun. Returns 0, or -errno with a sentence in `why`. */
int harp_page_file_wait(struct harp_page_file *file, uint32_t page, char *why);
/* cdef: end */

#endif
