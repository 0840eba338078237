#include "session/cc.h"

static void nothing_to_set_up(struct harp_cc *cc)
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

static uint64_t initial_window(const struct harp_cc *cc)
{
    return cc->config.initial_bytes;
}

const struct harp_cc_ops harp_cc_fixed = {
    .name = "fixed",
    .init = nothing_to_set_up,
    .on_ack = ignore_ack,
    .on_loss = ignore_loss,
    .on_timeout = ignore_timeout,
    .on_spurious = nothing_to_set_up,
    .window_bytes = initial_window,
};
