/* The bodies of control frames: FIRST and ACCEPT, ACK, CLOSE (docs/wire.md says what each field
 * means).
 *
 * Writing returns the body's length and needs HARP_BODY_MAX bytes of room. Reading refuses, with
 * false, every body that this version could not have written: wrong length, reserved bits that are
 * not zero.
 */
#ifndef HARP_CONTROL_H
#define HARP_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "sack.h"

#define HARP_NONCE_BYTES 16
#define HARP_COOKIE_BYTES 16
#define HARP_PARAMETERS_BYTES 60
#define HARP_ACK_BYTES 32 /* without the map */
#define HARP_BODY_MAX (HARP_ACK_BYTES + HARP_SACK_BYTES)
#define HARP_CLOSE_TEXT_MAX 120

struct harp_parameters {
    uint64_t connection;
    uint8_t nonce[HARP_NONCE_BYTES];
    uint16_t epoch;
    uint16_t segment;
    uint16_t paths;
    uint16_t flags;
    uint32_t messages;
    uint32_t frames;
    uint32_t first;
    uint8_t cookie[HARP_COOKIE_BYTES];
};

struct harp_ack {
    uint32_t largest;
    uint32_t delay_ns;
    uint32_t messages;
    uint64_t bytes;
    uint32_t frames;
    uint32_t marked;
    uint16_t bits;
    uint8_t map[HARP_SACK_BYTES];
};

uint16_t harp_parameters_write(const struct harp_parameters *parameters, uint8_t *body);
bool harp_parameters_read(struct harp_parameters *parameters, const uint8_t *body, uint16_t length);

uint16_t harp_ack_write(const struct harp_ack *ack, uint8_t *body);
bool harp_ack_read(struct harp_ack *ack, const uint8_t *body, uint16_t length);

/* CLOSE without text; text that another end wrote is accepted and passed over. */
uint16_t harp_close_write(uint32_t reason, uint8_t *body);
bool harp_close_read(uint32_t *reason, const uint8_t *body, uint16_t length);

#endif
