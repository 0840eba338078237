/* Frames that no end sent: by field, by bit, by length.
 *
 * The table of fields says where each field of docs/inside/wire.md lies. Changes are made to the
 * bytes of whole frames and know no key; an end that is to be malicious seals what comes out.
 */
#ifndef DST_FORGE_H
#define DST_FORGE_H

#include "link.h"

struct dst_field {
    const char *name;
    uint8_t type; /* of the frames that have it; 0: all */
    uint16_t at;
    uint16_t bytes; /* 0: all that is left */
};

extern const struct dst_field dst_fields[];
extern const size_t dst_fields_n;

/* How many changes dst_change knows for a field of a frame of `bytes_n` bytes. */
size_t dst_changes_of(const struct dst_field *field, size_t bytes_n);

/* Make change number `which`: each bit of the field, then telling values of all of it. */
void dst_change(const struct dst_field *field, size_t which, uint8_t *bytes, size_t bytes_n);

/* Change a random field of a frame in a random way. */
void dst_tamper(uint64_t *random, uint8_t *bytes, size_t bytes_n);

/* Make another frame of it: fields changed, cut, longer, or nothing but noise. */
void dst_forge(uint64_t *random, uint8_t *bytes, size_t *bytes_n, size_t room);

/* Note in `twin` how it differs from `sealed`, as an end sealed it. */
void dst_compare(const struct dst_flight *sealed, struct dst_flight *twin);

#endif
