/* The records of a shard: a pool without gaps.
 *
 *   record   head (24 bytes) | the row, `dim` floats | the optimizer's state, `state` floats
 *   slot     the number of a record: 0, 1, ... without a gap
 *   chunk    a power of two of records, 16 MiB or more of addresses
 *
 * Memory is the kernel's until a record is first touched, so a small table is small. A record that
 * goes is replaced by the last one, so what eviction frees is at the end, and is given back: chunk
 * by chunk, and the rest of the last one by madvise.
 */
#ifndef HARP_EMBEDDING_RECORDS_H
#define HARP_EMBEDDING_RECORDS_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
/* What a record knows of itself. Times are those of the caller's clock. */
struct harp_record {
    int64_t key;
    uint32_t count;   /* gradients that it had */
    uint32_t used;    /* when last */
    uint32_t born;    /* when it was inserted */
    uint32_t changed; /* bit 31: changed since the last save; the rest is in use within a step */
};
/* cdef: end */

#define TABLE_DIRTY (UINT32_C(1) << 31)

struct table_records {
    uint8_t **chunks;
    size_t record_bytes, chunk_bytes;
    uint32_t shift; /* of a slot, to its chunk */
    uint32_t count, chunk_count;
};

void table_records_open(struct table_records *records, uint32_t floats);
void table_records_close(struct table_records *records);
size_t table_records_bytes(const struct table_records *records);

/* Add a record at the end, with bytes of any value. Returns its slot, or -ENOMEM. */
int64_t table_records_push(struct table_records *records);
/* Remove the last one. */
void table_records_pop(struct table_records *records);
/* Give back what is behind the last record, within its chunk. */
void table_records_trim(struct table_records *records);

static inline struct harp_record *table_record(const struct table_records *records, uint32_t slot)
{
    uint32_t within = slot & ((UINT32_C(1) << records->shift) - 1);
    return (struct harp_record *)(records->chunks[slot >> records->shift] +
                                  within * records->record_bytes);
}

static inline float *table_row(struct harp_record *record)
{
    return (float *)(record + 1);
}

static inline void table_record_prefetch(const struct table_records *records, uint32_t slot,
                                         size_t bytes)
{
    const char *at = (const char *)table_record(records, slot);
    for (size_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(at + line);
    __builtin_prefetch(at + bytes - 1);
}

#endif
