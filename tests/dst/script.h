/* Actions of an application in a run, drawn from the seed. */
#ifndef DST_SCRIPT_H
#define DST_SCRIPT_H

#include "common.h"

#define DST_MESSAGES 400

struct dst_script {
    uint32_t n;
    uint32_t size[DST_MESSAGES];
    uint32_t ahead;                      /* buffers that the receiver keeps posted */
    uint32_t slack;                      /* how much longer than its message a buffer is */
    uint32_t short_at;                   /* this message's buffer is too short by one byte */
    uint64_t stall_from_ns, stall_to_ns; /* the receiver's application sleeps */
    uint32_t stream_frames;              /* frames that the receiver lends; 0: it posts buffers */
    uint32_t hold_ns;                    /* streamed: longest time between two returns of frames */
    bool pieces;                         /* the sender's payload lies in pieces of a chunk each */
};

void dst_script_draw(uint64_t *random, struct dst_script *script, uint16_t segment, uint64_t now_ns,
                     bool stalls);

/* Payload depends on side, message and position. */
static inline uint8_t dst_pattern(uint8_t side, uint32_t message, uint32_t i)
{
    return (uint8_t)(message * 131 + i * 7 + (i >> 8) * 13 + side * 89 + 1);
}

#endif
