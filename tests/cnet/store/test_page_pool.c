/* Pages of memory: shown, hidden, moved. */
#define _GNU_SOURCE
#include <assert.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "held_pages.h"

enum { SLOTS = 4 };

/* Pages have their bytes, whatever slots they lie in, and a tensor spans them. */
static void test_a_window_shows_pages_side_by_side(void)
{
    struct harp_page_pool *pool = open_pool(SLOTS);
    struct harp_page_window *window = harp_page_window_open(2 * PAGE, why);
    CHECK(window, "%s", why);
    uint8_t *base = harp_page_window_base(window);
    memset(harp_page_bytes(pool, 3), 1, PAGE);
    memset(harp_page_bytes(pool, 0), 2, PAGE);
    CHECK(!harp_page_show(pool, 3, window, 0) && !harp_page_show(pool, 0, window, PAGE), "show");
    CHECK(base[PAGE - 1] == 1 && base[PAGE] == 2, "%d %d", base[PAGE - 1], base[PAGE]);
    memset(base + PAGE - 8, 7, 16);
    CHECK(harp_page_bytes(pool, 3)[PAGE - 1] == 7 && harp_page_bytes(pool, 0)[0] == 7, "once");
    CHECK(!harp_page_hide(pool, 3), "hide");
    harp_page_copy(pool, 1, pool, 3);
    harp_page_give(pool, 3);
    CHECK(!harp_page_show(pool, 1, window, 0), "show again");
    CHECK(base[0] == 1 && base[PAGE - 1] == 7, "it moved");
    CHECK(!harp_page_hide(pool, 1) && !harp_page_hide(pool, 0), "hide");
    harp_page_window_close(window);
    harp_page_pool_close(pool);
}

/* How a child ends that does this. */
static int end_of_child(void (*work)(void))
{
    int status;
    pid_t child = fork();
    assert(child >= 0);
    if (!child) {
        close(STDERR_FILENO);
        work();
        _exit(0);
    }
    waitpid(child, &status, 0);
    return status;
}

static void read_hidden_page(void)
{
    struct harp_page_window *window = harp_page_window_open(PAGE, why);
    _exit(*(volatile uint8_t *)harp_page_window_base(window));
}

static void give_free_page(void)
{
    harp_page_give(harp_page_pool_open(PAGE, 1, why), 0);
}

static void copy_shown_page(void)
{
    struct harp_page_pool *pool = open_pool(2);
    struct harp_page_window *window = harp_page_window_open(PAGE, why);
    harp_page_show(pool, 0, window, 0);
    harp_page_copy(pool, 1, pool, 0);
}

static void test_mistakes_end_the_process(void)
{
    CHECK(end_of_child(read_hidden_page) != 0, "a hidden page was read");
    CHECK(end_of_child(give_free_page) != 0, "a free page was given back");
    CHECK(end_of_child(copy_shown_page) != 0, "a page was moved while it was shown");
}

static void test_memory_that_is_not_there_is_an_error(void)
{
    CHECK(!harp_page_pool_open((size_t)1 << 46, 1 << 10, why), "an exabyte");
    CHECK(strstr(why, "1024 pages of 70368744177664 bytes cannot be had"), "%s", why);
}

int main(void)
{
    test_a_window_shows_pages_side_by_side();
    test_mistakes_end_the_process();
    test_memory_that_is_not_there_is_an_error();
    return 0;
}
