/* Pages on disk: written, read back, and what goes wrong with files.
 *
 * usage: test_page_file FOLDER ring|threads
 */
#define _GNU_SOURCE
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "held_pages.h"
#include "store/page_file.h"

enum { PAGES = 100 };

static const char *folder;
static enum harp_page_io io;

static uint32_t ring_calls; /* of io_uring_enter */
static bool no_ring;        /* as a container's filter of system calls has it */
static int refused;         /* a flag of open that this file system has not, as it says by: */
static int refusal;

long __real_syscall(long number, ...);
/* The linker puts this in the place of syscall(). */
long __wrap_syscall(long number, ...)
{
    long words[6];
    va_list given;
    va_start(given, number);
    for (int i = 0; i < 6; i++)
        words[i] = va_arg(given, long);
    va_end(given);
    if (no_ring && number == SYS_io_uring_setup) {
        errno = EPERM;
        return -1;
    }
    ring_calls += number == SYS_io_uring_enter;
    return __real_syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

int __real_open(const char *path, int flags, ...);
/* And this in the place of open(). */
int __wrap_open(const char *path, int flags, ...)
{
    va_list given;
    va_start(given, flags);
    mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(given, mode_t) : 0;
    va_end(given);
    if (refused && (flags & refused) == refused) {
        errno = refusal;
        return -1;
    }
    return __real_open(path, flags, mode);
}

static struct harp_page_file *open_file(void)
{
    struct harp_page_file *file = harp_page_file_open(folder, PAGE, PAGES, io, why);
    CHECK(file, "%s", why);
    return file;
}

/* More than may be under way at once, and into other slots than they came from. */
static void test_pages_come_back_from_disk(void)
{
    struct harp_page_pool *pool = open_pool(PAGES);
    struct harp_page_file *file = open_file();
    const char *name = io == HARP_PAGE_IO_RING ? "io_uring" : "threads";
    CHECK(strstr(harp_page_file_line(file), name), "%s", harp_page_file_line(file));
    for (uint32_t page = 0; page < PAGES; page++) {
        memset(harp_page_bytes(pool, page), (int)page + 1, PAGE);
        harp_page_lend(pool, page);
        harp_page_file_write(file, page, harp_page_bytes(pool, page));
    }
    for (uint32_t page = 0; page < PAGES; page++)
        CHECK(!harp_page_file_wait(file, page, why), "%s", why);
    for (uint32_t page = 0; page < PAGES; page++)
        harp_page_file_read(file, page, harp_page_bytes(pool, PAGES - 1 - page));
    for (uint32_t page = 0; page < PAGES; page++) {
        CHECK(!harp_page_file_wait(file, page, why), "%s", why);
        const uint8_t *bytes = harp_page_bytes(pool, PAGES - 1 - page);
        CHECK(bytes[0] == page + 1 && bytes[PAGE - 1] == page + 1, "page %u: %d", page, bytes[0]);
    }
    harp_page_file_close(file);
    for (uint32_t page = 0; page < PAGES; page++)
        harp_page_return(pool, page);
    harp_page_pool_close(pool);
}

static void test_pages_that_gather_begin_by_one_call(void)
{
    enum { TOGETHER = 40 };
    struct harp_page_pool *pool = open_pool(TOGETHER);
    struct harp_page_file *file = open_file();
    harp_page_file_hold(file);
    for (uint32_t page = 0; page < TOGETHER; page++) {
        memset(harp_page_bytes(pool, page), (int)page + 1, PAGE);
        harp_page_file_write(file, page, harp_page_bytes(pool, page));
    }
    CHECK(!ring_calls, "%u calls before the release", ring_calls);
    harp_page_file_release(file);
    CHECK(ring_calls == (io == HARP_PAGE_IO_RING), "%u calls for %d pages", ring_calls, TOGETHER);
    for (uint32_t page = 0; page < TOGETHER; page++)
        CHECK(!harp_page_file_wait(file, page, why), "%s", why);
    harp_page_file_hold(file);
    harp_page_file_read(file, 7, harp_page_bytes(pool, 0));
    CHECK(!harp_page_file_wait(file, 7, why), "a wait begins what it needs: %s", why);
    CHECK(harp_page_bytes(pool, 0)[PAGE - 1] == 8, "page 7");
    harp_page_file_release(file);
    harp_page_file_close(file);
    harp_page_pool_close(pool);
}

static void test_a_file_grows_and_keeps_its_pages(void)
{
    struct harp_page_pool *pool = open_pool(2);
    struct harp_page_file *file = harp_page_file_open(folder, PAGE, 1, io, why);
    uint8_t *one = harp_page_bytes(pool, 0), *other = harp_page_bytes(pool, 1);
    memset(one, 1, PAGE);
    memset(other, 2, PAGE);
    harp_page_file_write(file, 0, one);
    CHECK(!harp_page_file_wait(file, 0, why), "%s", why);
    CHECK(harp_page_file_grow(file, UINT32_MAX, why) < 0, "281 TB");
    CHECK(strstr(why, folder) && strstr(why, "4294967295 more pages of 65536 bytes"), "%s", why);
    CHECK(!harp_page_file_grow(file, 9, why), "%s", why);
    harp_page_file_write(file, 9, other);
    harp_page_file_read(file, 0, one);
    CHECK(!harp_page_file_wait(file, 9, why) && !harp_page_file_wait(file, 0, why), "%s", why);
    CHECK(one[PAGE - 1] == 1, "page 0: %d", one[PAGE - 1]);
    harp_page_file_read(file, 9, one);
    CHECK(!harp_page_file_wait(file, 9, why) && one[0] == 2, "page 9: %d", one[0]);
    harp_page_file_close(file);
    harp_page_pool_close(pool);
}

static void put_in_place(struct harp_page_file *file, const char *path)
{
    int other = open(path, O_RDWR | O_CLOEXEC);
    CHECK(other >= 0 && dup2(other, harp_page_file_fd(file)) >= 0, "%s: %s", path, strerror(errno));
    close(other);
}

static void expect_failure(struct harp_page_file *file, uint32_t page, int error, const char *said)
{
    int failed = harp_page_file_wait(file, page, why);
    CHECK(failed == -error, "%d: %s", failed, why);
    CHECK(strstr(why, said) && strstr(why, folder), "%s", why);
}

static void test_files_that_fail_are_named(void)
{
    struct harp_page_pool *pool = open_pool(2);
    struct harp_page_file *file = open_file();
    uint8_t *bytes = harp_page_bytes(pool, 0), *more = harp_page_bytes(pool, 1);
    CHECK(!ftruncate(harp_page_file_fd(file), 5 * PAGE + 4096), "ftruncate");
    harp_page_file_read(file, 5, bytes);
    harp_page_file_read(file, 4, more);
    expect_failure(file, 5, ENODATA, "page 5 cannot be read: the file ends before it");
    CHECK(!harp_page_file_wait(file, 4, why), "%s", why);
    put_in_place(file, "/dev/full");
    harp_page_file_write(file, 7, bytes);
    expect_failure(file, 7, ENOSPC, "page 7 cannot be written: No space left on device");
    put_in_place(file, "/proc/self/mem"); /* nothing is mapped at its beginning */
    harp_page_file_read(file, 0, bytes);
    harp_page_file_read(file, 1, more); /* is under way while it is closed */
    expect_failure(file, 0, EIO, "page 0 cannot be read: Input/output error");
    harp_page_file_close(file);
    harp_page_pool_close(pool);
}

static void test_a_file_that_cannot_be_made_is_an_error(void)
{
    CHECK(!harp_page_file_open("/nowhere", PAGE, 1, io, why), "made");
    CHECK(strstr(why, "/nowhere: 1 pages of 65536 bytes cannot be had on disk: No such file"), "%s",
          why);
    CHECK(!harp_page_file_open(folder, 1 << 30, 1 << 14, io, why), "made");
    CHECK(strstr(why, "cannot be had on disk: "), "%s", why);
}

static bool page_comes_back(struct harp_page_file *file)
{
    struct harp_page_pool *pool = open_pool(2);
    memset(harp_page_bytes(pool, 0), 7, PAGE);
    harp_page_file_write(file, 3, harp_page_bytes(pool, 0));
    bool whole = !harp_page_file_wait(file, 3, why);
    harp_page_file_read(file, 3, harp_page_bytes(pool, 1));
    whole = whole && !harp_page_file_wait(file, 3, why);
    whole = whole && !memcmp(harp_page_bytes(pool, 0), harp_page_bytes(pool, 1), PAGE);
    harp_page_pool_close(pool);
    return whole;
}

/* Open a file, and find this in its line. */
static void expect_line(enum harp_page_io wanted, const char *said)
{
    struct harp_page_file *file = harp_page_file_open(folder, PAGE, PAGES, wanted, why);
    CHECK(file, "%s", why);
    const char *line = harp_page_file_line(file);
    CHECK(strstr(line, said), "%s", line);
    CHECK(page_comes_back(file), "%s: %s", line, why);
    harp_page_file_close(file);
}

static int names_in_folder(void)
{
    int found = 0;
    DIR *open_folder = opendir(folder);
    CHECK(open_folder, "%s: %s", folder, strerror(errno));
    while (readdir(open_folder))
        found++;
    closedir(open_folder);
    return found;
}

static void test_a_line_says_what_a_container_or_a_file_system_refuses(void)
{
    no_ring = true;
    expect_line(HARP_PAGE_IO_AUTO, "by threads: Operation not permitted, ");
    expect_line(HARP_PAGE_IO_THREADS, "by threads, ");
    CHECK(!harp_page_file_open(folder, PAGE, PAGES, HARP_PAGE_IO_RING, why), "made");
    CHECK(strstr(why, ": io_uring cannot be had: Operation not permitted"), "%s", why);
    no_ring = false;
    refused = O_DIRECT;
    refusal = EINVAL;
    expect_line(io, "through the kernel's cache: no O_DIRECT here");
    refused = O_TMPFILE;
    refusal = EOPNOTSUPP;
    int before = names_in_folder();
    expect_line(io, "100 pages of 65536 bytes by ");
    CHECK(names_in_folder() == before, "a name is left in %s", folder);
    refused = 0;
}

int main(int argc, char **argv)
{
    assert(argc == 3);
    folder = argv[1];
    io = strcmp(argv[2], "ring") ? HARP_PAGE_IO_THREADS : HARP_PAGE_IO_RING;
    test_pages_that_gather_begin_by_one_call();
    test_pages_come_back_from_disk();
    test_a_file_grows_and_keeps_its_pages();
    test_files_that_fail_are_named();
    test_a_file_that_cannot_be_made_is_an_error();
    test_a_line_says_what_a_container_or_a_file_system_refuses();
    return 0;
}
