#include "virtual/session_ends.h"

#include <stdlib.h>

#define LISTENER 77

void virtual_configure_pair(struct harp_session_config config[2], uint16_t segment, uint16_t paths)
{
    for (uint8_t end = 0; end < 2; end++) {
        harp_session_defaults(&config[end], segment, paths);
        config[end].connection = 100u + end;
        config[end].listener = LISTENER;
        config[end].nonce[0] = end;
        config[end].seed = 5u + end;
        config[end].first = 1;
        config[end].epoch = 1;
    }
}

/* Sizes of sessions are multiples of 64 (session.h), as aligned_alloc wants them. */
static void *allocate_session(const struct harp_session_config *config)
{
    return aligned_alloc(64, harp_session_size(config));
}

struct harp_session *virtual_session_connect(const struct harp_session_config *config,
                                             uint64_t now_ns)
{
    void *memory = allocate_session(config);
    return memory ? harp_session_connect(memory, config, now_ns) : NULL;
}

struct harp_session *virtual_session_make(const struct harp_session_config *config, uint64_t now_ns,
                                          const struct harp_parameters *first, uint8_t path)
{
    void *memory = allocate_session(config);
    return memory ? harp_session_accept(memory, config, now_ns, first, path) : NULL;
}

struct harp_session *virtual_session_accept(const struct harp_session_config *config,
                                            uint64_t now_ns, const struct harp_header *header,
                                            const uint8_t *body)
{
    struct harp_parameters first;
    if (header->type != HARP_FIRST ||
        harp_parameters_decode(body, header->length, &first) != HARP_WIRE_OK)
        return NULL;
    return virtual_session_make(config, now_ns, &first, header->path);
}

bool virtual_session_knows_peer(const struct harp_session *session)
{
    return session && harp_session_peer(session)->segment != 0;
}
