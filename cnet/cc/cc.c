#include <string.h>

#include "cc/cc.h"

/* ---- fixed, none: a window that never changes ---- */

static void set_up_nothing(struct harp_cc *cc)
{
    (void)cc;
}

static void ignore_ack(struct harp_cc *cc, const struct harp_cc_ack *ack)
{
    (void)cc, (void)ack;
}

static void ignore_loss(struct harp_cc *cc, const struct harp_cc_loss *loss)
{
    (void)cc, (void)loss;
}

static void ignore_timeout(struct harp_cc *cc, uint64_t now_ns)
{
    (void)cc, (void)now_ns;
}

static uint64_t keep_initial_window(const struct harp_cc *cc)
{
    return cc->config.initial_bytes;
}

#define CONSTANT_WINDOW                                                                            \
    .init = set_up_nothing, .on_ack = ignore_ack, .on_loss = ignore_loss,                          \
    .on_timeout = ignore_timeout, .on_spurious = set_up_nothing,                                   \
    .window_bytes = keep_initial_window

const struct harp_cc_ops harp_cc_fixed = {CONSTANT_WINDOW, .name = "fixed", .follows_path = true};

const struct harp_cc_ops harp_cc_none = {CONSTANT_WINDOW, .name = "none"};

const struct harp_cc_ops *harp_cc_by_name(const char *name)
{
    static const struct harp_cc_ops *const all[] = {&harp_cc_swift, &harp_cc_fixed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}
