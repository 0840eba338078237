#include "end_keys.h"

#include <string.h>

#include "virtual/session_ends.h"

static struct harp_end own_half(const struct harp_session_config *config)
{
    struct harp_end half = {.connection = config->connection, .epoch = config->epoch};
    memcpy(half.nonce, config->nonce, sizeof half.nonce);
    return half;
}

static struct harp_end peer_half(const struct harp_session *session)
{
    const struct harp_parameters *peer = harp_session_peer(session);
    struct harp_end half = {.connection = peer->connection, .epoch = peer->epoch};
    memcpy(half.nonce, peer->nonce, sizeof half.nonce);
    return half;
}

static void derive_keys(struct dst_keys *keys, const struct harp_session_config *config,
                        const struct harp_session *session)
{
    if (keys->known || !virtual_session_knows_peer(session))
        return;
    struct harp_end own = own_half(config), peer = peer_half(session);
    const struct harp_end *connecting = keys->listening ? &peer : &own;
    const struct harp_end *listening = keys->listening ? &own : &peer;
    struct harp_key up = harp_key_up(&keys->secret, connecting, listening);
    struct harp_key down = harp_key_down(&keys->secret, connecting, listening);
    keys->in = keys->listening ? up : down;
    keys->out = keys->listening ? down : up;
    keys->known = true;
}

bool dst_keys_find(struct dst_keys *keys, const struct harp_session_config *config,
                   const struct harp_session *session, uint8_t type, bool sending,
                   struct harp_key *key)
{
    derive_keys(keys, config, session);
    if (type == HARP_FIRST || type == HARP_COOKIE || type == HARP_VERSION_NOTICE) {
        *key = harp_key_hello(&keys->secret, keys->listener);
        return true;
    }
    if (type == HARP_ACCEPT && (!keys->listening || virtual_session_knows_peer(session))) {
        struct harp_end connecting = keys->listening ? peer_half(session) : own_half(config);
        *key = harp_key_accept(&keys->secret, keys->listener, &connecting);
        return true;
    }
    *key = sending ? keys->out : keys->in;
    return keys->known;
}
