/* A table of choices: the algorithm, protocol and number of channels that NCCL takes for a
 * collective, by communicator and size.
 *
 *     {"format": "harp-tuning-1",
 *      "communicators": [{"ranks": 64, "nodes": 8, "rows": [
 *        {"collective": "AllReduce", "min_bytes": 65536, "max_bytes": 1048576,
 *         "algorithm": "Tree", "protocol": "LL128", "channels": 0}]}]}
 *
 * It is a file by itself or member "tuning" of a plan (docs/use/tuning.md). The first row counts
 * whose size fits and whose algorithm and protocol NCCL has; both limits are sizes of the row.
 * Channels 0, no row, or no such communicator: NCCL chooses.
 */
#ifndef HARP_NCCL_TUNER_TABLE_H
#define HARP_NCCL_TUNER_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TUNER_CHANNELS_MOST 64 /* NCCL's own limit (MAXCHANNELS) */

struct tuner_row {
    uint64_t min_bytes, max_bytes;
    uint8_t collective, algorithm, protocol, channels; /* as tuner_abi.h numbers them */
};

struct tuner_table {
    struct tuner_row *rows; /* of one communicator; freed by tuner_table_free */
    uint32_t rows_n;
    bool found;           /* the file has a table: not every plan has one */
    uint64_t fingerprint; /* of the whole file: alike on all ranks if the file is */
};

/* Read the rows for a communicator of this many ranks on this many nodes; there may be none. False,
 * and one sentence in `why` (HARP_WHY_BYTES), if any part of the file is wrong. */
bool tuner_table_read(struct tuner_table *table, const char *path, uint64_t ranks, uint64_t nodes,
                      char *why);

/* The same of a file's text. */
bool tuner_table_parse(struct tuner_table *table, const char *text, size_t length, uint64_t ranks,
                       uint64_t nodes, char *why);

void tuner_table_free(struct tuner_table *table);

/* The row for a collective of this size: the first from number `from` on; NULL: none. */
const struct tuner_row *tuner_table_find(const struct tuner_table *table, uint32_t from,
                                         int collective, uint64_t bytes);

/* "Tree LL128" */
void tuner_row_name(const struct tuner_row *row, char *out, size_t room);

#endif
