/* Session ends: both ends of a session in one process, with configurations and memory.
 *
 *     virtual_configure_pair(config, segment, paths);
 *     end[0] = virtual_session_connect(&config[0], now_ns);
 *     ... its first frame is FIRST; the other end is made of it:
 *     end[1] = virtual_session_accept(&config[1], now_ns, &frame.header, frame.body);
 *
 * Each session lies in memory of its own, of exactly the size that it asks for, so that a sanitizer
 * sees what reaches beyond it; free() gives it back.
 */
#ifndef HARP_VIRTUAL_SESSION_ENDS_H
#define HARP_VIRTUAL_SESSION_ENDS_H

#include "session/session.h"

/* Two configurations with defaults, that differ in what has to: id, nonce, seed. config[0]
 * connects, config[1] listens. Epochs are 1 and numbers begin at 1. */
void virtual_configure_pair(struct harp_session_config config[2], uint16_t segment, uint16_t paths);

/* The connecting end; NULL without memory. */
struct harp_session *virtual_session_connect(const struct harp_session_config *config,
                                             uint64_t now_ns);

/* The listening end, of parameters that a listener has judged (session/listener.h), or of a FIRST
 * that came; NULL if it is another frame or not sound, or without memory. */
struct harp_session *virtual_session_make(const struct harp_session_config *config, uint64_t now_ns,
                                          const struct harp_parameters *first, uint8_t path);
struct harp_session *virtual_session_accept(const struct harp_session_config *config,
                                            uint64_t now_ns, const struct harp_header *header,
                                            const uint8_t *body);

/* Whether there is a session and it knows the other end's parameters. */
bool virtual_session_knows_peer(const struct harp_session *session);

#endif
