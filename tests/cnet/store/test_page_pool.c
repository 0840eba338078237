/* Pages of memory: shown, hidden, moved. */
#define _GNU_SOURCE
#include <assert.h>
#include <signal.h>
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

/* How a child ends that does this, with a slot in a state. */
static int end_of_child(void (*work)(enum harp_page_state state, int step),
                        enum harp_page_state state, int step)
{
    int status;
    pid_t child = fork();
    assert(child >= 0);
    if (!child) {
        close(STDERR_FILENO);
        work(state, step);
        _exit(0);
    }
    waitpid(child, &status, 0);
    return status;
}

static bool ends_by_assert(int status)
{
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static struct harp_page_window *one_window;

static void show_slot(struct harp_page_pool *pool, uint32_t slot)
{
    CHECK(!harp_page_show(pool, slot, one_window, 0), "show");
}

static void hide_slot(struct harp_page_pool *pool, uint32_t slot)
{
    CHECK(!harp_page_hide(pool, slot), "hide");
}

/* The table of page_pool.h. */
static const struct {
    void (*make)(struct harp_page_pool *pool, uint32_t slot);
    enum harp_page_state from, to;
} steps[] = {
    {harp_page_take, HARP_PAGE_FREE, HARP_PAGE_HELD},
    {harp_page_give, HARP_PAGE_HELD, HARP_PAGE_FREE},
    {show_slot, HARP_PAGE_HELD, HARP_PAGE_SHOWN},
    {hide_slot, HARP_PAGE_SHOWN, HARP_PAGE_HELD},
    {harp_page_lend, HARP_PAGE_HELD, HARP_PAGE_LENT},
    {harp_page_return, HARP_PAGE_LENT, HARP_PAGE_HELD},
};
enum { STEPS = sizeof steps / sizeof *steps };

static struct harp_page_pool *pool_with_slot_in(enum harp_page_state state)
{
    struct harp_page_pool *pool = open_pool(2);
    one_window = harp_page_window_open(PAGE, why);
    if (state == HARP_PAGE_FREE)
        harp_page_give(pool, 0);
    else if (state == HARP_PAGE_SHOWN)
        show_slot(pool, 0);
    else if (state == HARP_PAGE_LENT)
        harp_page_lend(pool, 0);
    CHECK(harp_page_state(pool, 0) == state, "%d", harp_page_state(pool, 0));
    return pool;
}

static void make_step(enum harp_page_state state, int step)
{
    struct harp_page_pool *pool = pool_with_slot_in(state);
    steps[step].make(pool, 0);
    CHECK(harp_page_state(pool, 0) == steps[step].to, "%d", harp_page_state(pool, 0));
}

static void test_the_table_of_states_has_all_steps_and_no_others(void)
{
    for (int state = HARP_PAGE_FREE; state <= HARP_PAGE_LENT; state++) {
        for (int step = 0; step < STEPS; step++) {
            int status = end_of_child(make_step, (enum harp_page_state)state, step);
            if (steps[step].from == (enum harp_page_state)state)
                CHECK(status == 0, "state %d, step %d: %d", state, step, status);
            else
                CHECK(ends_by_assert(status), "state %d, step %d: %d", state, step, status);
        }
    }
}

static void read_hidden_page(enum harp_page_state state, int step)
{
    struct harp_page_pool *pool = pool_with_slot_in(state);
    if (step)
        hide_slot(pool, 0);
    (void)*(volatile uint8_t *)harp_page_window_base(one_window);
}

static void copy_page(enum harp_page_state state, int step)
{
    (void)step;
    struct harp_page_pool *pool = pool_with_slot_in(state);
    harp_page_copy(pool, 1, pool, 0);
}

static void close_pool(enum harp_page_state state, int step)
{
    (void)step;
    harp_page_pool_close(pool_with_slot_in(state));
}

static void read_bytes(enum harp_page_state state, int step)
{
    (void)step;
    CHECK(harp_page_bytes(pool_with_slot_in(state), 0), "bytes");
}

static void test_mistakes_end_the_process(void)
{
    CHECK(end_of_child(read_hidden_page, HARP_PAGE_SHOWN, 0) == 0, "a page that is shown");
    CHECK(end_of_child(read_hidden_page, HARP_PAGE_SHOWN, 1) != 0, "a hidden page was read");
    for (int state = HARP_PAGE_FREE; state <= HARP_PAGE_LENT; state++) {
        enum harp_page_state own = (enum harp_page_state)state;
        bool held = own == HARP_PAGE_HELD, nobodys = own == HARP_PAGE_FREE;
        CHECK(ends_by_assert(end_of_child(copy_page, own, 0)) == !held, "copy, state %d", state);
        CHECK(ends_by_assert(end_of_child(read_bytes, own, 0)) == nobodys, "bytes, state %d",
              state);
        CHECK(ends_by_assert(end_of_child(close_pool, own, 0)) == !(held || nobodys),
              "close, state %d", state);
    }
}

static void test_memory_that_is_not_there_is_an_error(void)
{
    CHECK(!harp_page_pool_open((size_t)1 << 46, 1 << 10, why), "an exabyte");
    CHECK(strstr(why, "1024 pages of 70368744177664 bytes cannot be had"), "%s", why);
}

int main(void)
{
    test_a_window_shows_pages_side_by_side();
    test_the_table_of_states_has_all_steps_and_no_others();
    test_mistakes_end_the_process();
    test_memory_that_is_not_there_is_an_error();
    return 0;
}
