/* The keys of one end, made of what it knows of the other. */
#include <string.h>

#include "end.h"

const struct harp_key dst_secret = {UINT64_C(0x0123456789abcdef), UINT64_C(0xfedcba9876543210)};

static struct harp_end own_half(const struct dst_end *end)
{
    struct harp_end half = {.connection = end->config.connection, .epoch = end->config.epoch};
    memcpy(half.nonce, end->config.nonce, sizeof half.nonce);
    return half;
}

static struct harp_end peer_half(const struct dst_end *end)
{
    const struct harp_parameters *peer = harp_session_peer(end->session);
    struct harp_end half = {.connection = peer->connection, .epoch = peer->epoch};
    memcpy(half.nonce, peer->nonce, sizeof half.nonce);
    return half;
}

bool dst_end_knows_peer(const struct dst_end *end)
{
    return end->session && harp_session_peer(end->session)->segment != 0;
}

static void derive(struct dst_end *end)
{
    if (end->keyed || !dst_end_knows_peer(end))
        return;
    struct harp_end own = own_half(end), peer = peer_half(end);
    struct harp_key up =
        end->side ? harp_key_up(&dst_secret, &peer, &own) : harp_key_up(&dst_secret, &own, &peer);
    struct harp_key down = end->side ? harp_key_down(&dst_secret, &peer, &own)
                                     : harp_key_down(&dst_secret, &own, &peer);
    end->in = end->side ? up : down;
    end->out = end->side ? down : up;
    end->keyed = true;
}

bool dst_end_key(struct dst_end *end, uint8_t type, bool sending, struct harp_key *key)
{
    derive(end);
    if (type == HARP_FIRST || type == HARP_COOKIE || type == HARP_VERSION_NOTICE) {
        *key = harp_key_hello(&dst_secret, DST_LISTENER);
        return true;
    }
    if (type == HARP_ACCEPT && (end->side == 0 || dst_end_knows_peer(end))) {
        struct harp_end connecting = end->side ? peer_half(end) : own_half(end);
        *key = harp_key_accept(&dst_secret, DST_LISTENER, &connecting);
        return true;
    }
    *key = sending ? end->out : end->in;
    return end->keyed;
}
