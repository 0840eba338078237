/* The keys of one end of a session in a virtual network, made as docs/inside/wire.md says of a
 * secret that both ends know, of the end's configuration and of what its session knows of the
 * other.
 *
 *     struct dst_keys keys = {.secret = secret, .listener = 77, .listening = false};
 *     if (dst_keys_find(&keys, &config, session, header.type, true, &key)) ... seal
 */
#ifndef DST_END_KEYS_H
#define DST_END_KEYS_H

#include <stdbool.h>

#include "session/session.h"
#include "wire/keys.h"

struct dst_keys {
    struct harp_key secret;
    uint64_t listener; /* its id */
    bool listening;    /* these are the listening end's */
    bool known;        /* `in` and `out` are, since the session knows its peer */
    struct harp_key in, out;
};

/* The key of frames of a type, that this end sends or receives. `session` is NULL while there is
 * none. False if this end cannot know the key yet. */
bool dst_keys_find(struct dst_keys *keys, const struct harp_session_config *config,
                   const struct harp_session *session, uint8_t type, bool sending,
                   struct harp_key *key);

#endif
