/* Controllers by name, and windows that no news changes. */
#include <string.h>

#include "cc/cc.h"
#include "check.h"

static void test_controllers_are_found_by_name(void)
{
    CHECK(harp_cc_by_name("swift") == &harp_cc_swift, "swift is not found");
    CHECK(harp_cc_by_name("fixed") == &harp_cc_fixed, "fixed is not found");
    CHECK(strcmp(harp_cc_swift.name, "swift") == 0, "swift is called %s", harp_cc_swift.name);
    /* Nobody can ask for the bound of ports that hold back by themselves. */
    const char *const wrong[] = {"none", "", "Swift", "swift2", "cubic"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(!harp_cc_by_name(wrong[i]), "there is a controller called \"%s\"", wrong[i]);
}

static void test_a_constant_window_ignores_all_news(const struct harp_cc_ops *ops)
{
    struct harp_cc cc = {.ops = ops,
                         .config = {.initial_bytes = 12345,
                                    .min_bytes = 1,
                                    .max_bytes = 1 << 20,
                                    .segment_bytes = 9,
                                    .target_ns = 25000}};
    struct harp_cc_ack ack = {.now_ns = 5, .fabric_ns = 900000, .bytes = 12345, .marked = 3};
    struct harp_cc_loss loss = {.now_ns = 6, .bytes = 12345, .sent_ns = 1};
    ops->init(&cc);
    CHECK(ops->window_bytes(&cc) == 12345, "%s begins otherwise", ops->name);
    ops->on_ack(&cc, &ack);
    ops->on_loss(&cc, &loss);
    ops->on_timeout(&cc, 7);
    ops->on_spurious(&cc);
    CHECK(ops->window_bytes(&cc) == 12345, "%s changed", ops->name);
}

/* The same losses make swift's window smaller, never smaller than its bound. */
static void test_swift_gives_way_within_its_bounds(void)
{
    struct harp_cc cc = {.ops = &harp_cc_swift,
                         .config = {.initial_bytes = 15000,
                                    .min_bytes = 1500,
                                    .max_bytes = 1 << 20,
                                    .segment_bytes = 1500,
                                    .target_ns = 25000,
                                    .host_target_ns = 25000}};
    cc.ops->init(&cc);
    CHECK(cc.ops->window_bytes(&cc) == 15000, "swift begins otherwise");
    for (uint64_t now_ns = 1000000; now_ns < 100000000; now_ns *= 2)
        cc.ops->on_timeout(&cc, now_ns);
    CHECK(cc.ops->window_bytes(&cc) >= 1500, "the window is below its bound");
    CHECK(cc.ops->window_bytes(&cc) < 15000, "timeouts make no window smaller");
}

int main(void)
{
    test_controllers_are_found_by_name();
    test_a_constant_window_ignores_all_news(&harp_cc_fixed);
    test_a_constant_window_ignores_all_news(&harp_cc_none);
    test_swift_gives_way_within_its_bounds();
    return 0;
}
