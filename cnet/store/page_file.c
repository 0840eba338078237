#define _GNU_SOURCE
#include "store/page_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/page_io.h"

enum page_turn { IDLE, UNDER_WAY, OVER };

struct page {
    struct page_request request;
    size_t done; /* bytes moved before this request */
    int error;
    enum page_turn turn;
};

struct harp_page_file {
    const struct page_io_ops *ops;
    struct page_io *io;
    size_t page_bytes;
    uint32_t pages_n, under_way;
    int fd;
    bool direct, held;
    char folder[PATH_MAX];
    char line[160];
    struct page *pages;
};

__attribute__((format(printf, 2, 3))) static void say_why(char *why, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(why, HARP_STORE_WHY_BYTES, format, values);
    va_end(values);
}

/* A file without a name; where the file system has no O_TMPFILE, one that is unlinked at once. */
static int open_nameless(const char *folder, int flags)
{
    char path[PATH_MAX];
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    if (snprintf(path, sizeof path, "%s/harp-pages-XXXXXX", folder) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC | flags);
    if (fd >= 0)
        unlink(path);
    return fd;
}

static int open_file(struct harp_page_file *file)
{
    file->direct = true;
    file->fd = open_nameless(file->folder, O_DIRECT);
    if (file->fd < 0 && errno == EINVAL) {
        file->direct = false;
        file->fd = open_nameless(file->folder, 0);
    }
    return file->fd < 0 ? -errno : 0;
}

/* Have `pages` more on disk and in the list. A disk that is full gets back what it gave. */
static int add_pages(struct harp_page_file *file, uint32_t pages)
{
    size_t n = file->pages_n;
    off_t end = (off_t)(file->page_bytes * n);
    int failed = posix_fallocate(file->fd, end, (off_t)(file->page_bytes * pages));
    struct page *list = failed ? NULL : realloc(file->pages, (n + pages) * sizeof *list);
    if (!list) {
        if (ftruncate(file->fd, end) < 0)
            failed = errno;
        return failed ? -failed : -ENOMEM;
    }
    memset(list + n, 0, pages * sizeof *list);
    file->pages = list;
    file->pages_n += pages;
    return 0;
}

static int open_io(struct harp_page_file *file, enum harp_page_io io)
{
    int ring = 0;
    if (io != HARP_PAGE_IO_THREADS) {
        file->ops = &page_io_ring;
        file->io = file->ops->open();
        ring = errno;
    }
    if (!file->io && io != HARP_PAGE_IO_RING) {
        file->ops = &page_io_threads;
        file->io = file->ops->open();
    }
    if (!file->io)
        return -errno;
    snprintf(file->line, sizeof file->line, "%u pages of %zu bytes by %s%s%s, %s", file->pages_n,
             file->page_bytes, file->ops->name, ring && file->ops == &page_io_threads ? ": " : "",
             ring && file->ops == &page_io_threads ? strerror(ring) : "",
             file->direct ? "O_DIRECT" : "through the kernel's cache: no O_DIRECT here");
    return 0;
}

struct harp_page_file *harp_page_file_open(const char *folder, size_t page_bytes, uint32_t pages,
                                           enum harp_page_io io, char *why)
{
    assert(page_bytes > 0 && page_bytes % HARP_STORE_ALIGN == 0 && page_bytes <= INT_MAX);
    struct harp_page_file *file = calloc(1, sizeof *file);
    if (!file) {
        say_why(why, "no memory for a file of %u pages", pages);
        return NULL;
    }
    snprintf(file->folder, sizeof file->folder, "%s", folder);
    file->page_bytes = page_bytes;
    file->fd = -1;
    int failed = open_file(file);
    if (!failed)
        failed = add_pages(file, pages);
    if (failed)
        say_why(why, "%s: %u pages of %zu bytes cannot be had on disk: %s", folder, pages,
                page_bytes, strerror(-failed));
    else if ((failed = open_io(file, io)) != 0)
        say_why(why, "%s: %s cannot be had: %s", folder,
                io == HARP_PAGE_IO_RING ? "io_uring" : "threads", strerror(-failed));
    if (!failed)
        return file;
    if (file->fd >= 0)
        close(file->fd);
    free(file->pages);
    free(file);
    return NULL;
}

int harp_page_file_grow(struct harp_page_file *file, uint32_t pages, char *why)
{
    assert(!file->under_way);
    int failed = add_pages(file, pages);
    if (failed)
        say_why(why, "%s: %u more pages of %zu bytes cannot be had on disk: %s", file->folder,
                pages, file->page_bytes, strerror(-failed));
    return failed;
}

size_t harp_page_file_bytes(const struct harp_page_file *file)
{
    return sizeof *file + file->pages_n * sizeof *file->pages;
}

const char *harp_page_file_line(const struct harp_page_file *file)
{
    return file->line;
}

int harp_page_file_fd(const struct harp_page_file *file)
{
    return file->fd;
}

static void submit_rest(struct harp_page_file *file, struct page *page)
{
    size_t at = (size_t)(page - file->pages) * file->page_bytes + page->done;
    page->request.offset = at;
    page->request.bytes = file->page_bytes - page->done;
    page->request.fd = file->fd;
    file->ops->submit(file->io, &page->request);
    if (!file->held && file->ops->begin)
        file->ops->begin(file->io);
}

/* Take one result. A kernel may move less than was asked for; the rest follows. */
static void reap_one(struct harp_page_file *file)
{
    assert(file->under_way > 0);
    struct page_request *request = file->ops->reap(file->io);
    struct page *page = (struct page *)(void *)request; /* its first member */
    if (request->result == -EINTR || request->result == -EAGAIN) {
        submit_rest(file, page);
        return;
    }
    if (request->result > 0) {
        page->done += (size_t)request->result;
        request->memory += request->result;
        if (page->done < file->page_bytes) {
            submit_rest(file, page);
            return;
        }
    }
    page->error = request->result < 0 ? request->result : request->result == 0 ? -ENODATA : 0;
    page->turn = OVER;
    file->under_way--;
}

static void begin_page(struct harp_page_file *file, uint32_t page, uint8_t *memory, bool write)
{
    assert(page < file->pages_n && (uintptr_t)memory % HARP_STORE_ALIGN == 0);
    struct page *begun = &file->pages[page];
    assert(begun->turn == IDLE);
    while (file->under_way == PAGE_IO_DEPTH)
        reap_one(file);
    *begun = (struct page){.request = {.memory = memory, .write = write}, .turn = UNDER_WAY};
    file->under_way++;
    submit_rest(file, begun);
}

void harp_page_file_read(struct harp_page_file *file, uint32_t page, uint8_t *memory)
{
    begin_page(file, page, memory, false);
}

void harp_page_file_write(struct harp_page_file *file, uint32_t page, uint8_t *memory)
{
    begin_page(file, page, memory, true);
}

void harp_page_file_hold(struct harp_page_file *file)
{
    file->held = true;
}

void harp_page_file_release(struct harp_page_file *file)
{
    file->held = false;
    if (file->ops->begin)
        file->ops->begin(file->io);
}

int harp_page_file_wait(struct harp_page_file *file, uint32_t page, char *why)
{
    assert(page < file->pages_n);
    struct page *begun = &file->pages[page];
    assert(begun->turn != IDLE);
    while (begun->turn != OVER)
        reap_one(file);
    begun->turn = IDLE;
    if (begun->error == -ENODATA)
        say_why(why, "%s: page %u cannot be %s: the file ends before it; it was truncated",
                file->folder, page, begun->request.write ? "written" : "read");
    else if (begun->error)
        say_why(why, "%s: page %u cannot be %s: %s", file->folder, page,
                begun->request.write ? "written" : "read", strerror(-begun->error));
    return begun->error;
}

void harp_page_file_close(struct harp_page_file *file)
{
    if (!file)
        return;
    while (file->under_way)
        reap_one(file);
    file->ops->close(file->io);
    close(file->fd);
    free(file->pages);
    free(file);
}
