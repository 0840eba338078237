/* Rows on disk: a table with a cap keeps the rows that were used last in memory, others in a file.
 *
 *   table_cold.c         locks; has the rows of a call in memory, round by round
 *   table_cold_pages.c   pages of the file: what is read, written, evicted
 *
 * Heads and index stay in memory, and slots stay what they are: checkpoints are those of a table
 * without a cap. `where` says of each slot where its values are:
 *
 *     where   | 7 | cold 41 | 0 | ...      a place in `values`, or one on disk
 *     owners  | slot, epoch | ...          of each place in `values`: the slot that has it, when
 * last used page    | key, values | key, values | ...    place 41 is record 41 % n of page 41 / n
 *
 * Rows that are cold together go to a page together, so a page is written once for many rows. A
 * read takes those rows of a page that were asked for. Where few others would be left, it takes
 * all of them, and the page is empty again: so pages are collected by reads that happen anyway.
 * With 10 records to a page and a third as the limit, a page is read 7 times for each time that it
 * is written (a page gives up a record at each read, and its last 4 at once).
 *
 * The rows that go: a hand sweeps over all rows in a circle, as CLOCK's does. It takes a row that
 * is among the eighth used longest ago; a sample of rows tells how old these are. Rows of this call
 * and the one before stay, if others are there, and so do rows with gradients that wait; so a batch
 * is in memory even where the cap is smaller.
 *
 * Locks: `io`, to move rows between memory and disk; and `rows`, to read or change any.
 * `io` is taken first. Reads and writes of pages happen under `io` alone, so look-ups and steps go
 * on meanwhile; a row that they changed since its copy was written stays in memory. A round has
 * room for all its pages, so reads go on while others have `rows`.
 *
 * An error is -errno with a sentence in harp_embedding_why(). No row is lost or changed then: rows
 * are in memory until their page is written, and on disk until they are in memory.
 */
#ifndef HARP_EMBEDDING_COLD_H
#define HARP_EMBEDDING_COLD_H

#include <pthread.h>

#include "table/table_state.h"

enum { TABLE_ROUND_BYTES = 4 << 20 };

/* A row that is asked for, and its place on disk. */
struct table_wanted {
    uint32_t place, shard, slot;
};

struct table_victim {
    uint32_t shard, value; /* a place in its `values` */
    uint32_t place;        /* on disk, once it is written */
};

struct table_cold {
    pthread_mutex_t io, rows;
    bool io_held; /* by a holder of `rows`, too */
    struct harp_page_file *file;
    size_t page_bytes, record_bytes;
    uint32_t per_page, sparse; /* records; as few left over are taken, too */
    uint64_t most;             /* rows in memory */
    uint64_t drawn;            /* state of random numbers */
    uint64_t pages_read;
    uint32_t epoch, call; /* numbers of the last call, and of the one that has `io` */
    /* The pages of the file; written under `rows`. */
    struct {
        uint32_t n, empty_n;
        uint32_t *empty; /* those without records */
        uint16_t *live;  /* records of each */
    } pages;
    /* Pages that are moved together; the holder of `io` writes it. */
    struct {
        uint32_t most;   /* pages that are read or written at once */
        uint8_t *buffer; /* `most` pages to read, and as many to write */
        size_t buffer_bytes;
        struct table_wanted *wanted;
        struct table_victim *victims;
        uint32_t *reads, *writes; /* pages */
        uint32_t wanted_n, victims_n, reads_n, writes_n;
        uint32_t reads_first; /* reads that began before the writes */
    } round;
    /* Where the search for victims goes on. */
    struct {
        uint32_t shard, value;
    } hand;
};

/* The sentence of this thread's last error. */
char *table_why(void);
/* Rows of a table that are in memory. */
uint64_t table_cold_resident(const struct harp_embedding *table);
void table_cold_close(struct harp_embedding *table);
/* Under the locks of both, which stay: swap what they have on disk. */
void table_cold_swap(struct table_cold *cold, struct table_cold *other);
size_t table_cold_bytes(const struct table_cold *cold);

/* Lock the capped tables of features, with the rows of all ids in memory, and with room for those
 * that are to be inserted. Returns 0, or -errno with nothing locked. */
int table_cold_begin(const struct harp_embedding_bags *features, uint64_t n, bool insert);
void table_cold_end(const struct harp_embedding_bags *features, uint64_t n);
/* Lock the rows of capped tables, which stay where they are. */
void table_cold_lock_rows(struct harp_embedding *const *tables, uint64_t n);
void table_cold_unlock_rows(struct harp_embedding *const *tables, uint64_t n);
/* Lock a table against everything, if it is capped. */
void table_cold_lock(const struct harp_embedding *table);
void table_cold_unlock(const struct harp_embedding *table);
/* Under that lock: have the rows of keys in memory, and room for those that are not there. */
int table_cold_have(struct harp_embedding *table, const int64_t *keys, uint64_t n);

/* Under that lock: copy the values of slots, which may be cold. */
int table_cold_read(const struct harp_embedding *table, uint32_t shard, uint32_t slot, uint64_t n,
                    float *values);
/* The values of a slot go, wherever they are. */
void table_cold_drop(struct table_cold *cold, struct table_shard *shard, uint32_t slot);
/* A record went from this place on disk. */
void table_cold_forget(struct table_cold *cold, uint32_t place);

/* Of table_cold_pages.c, under both locks; `rows` is let go of during input and output.
 *
 * Have what is wanted in memory, where there is to be room for `inserts` more. */
int table_cold_round(struct harp_embedding *table, uint64_t inserts);
/* Read the pages of `reads` into the buffer. */
int table_cold_read_pages(struct table_cold *cold);
/* Have empty pages for `rows` that come to memory, under both locks. Returns 0 or -errno. */
int table_cold_reserve(struct harp_embedding *table, uint64_t rows);
/* Leave each page of what is wanted once in `reads`. */
void table_cold_pages_of_wanted(struct table_cold *cold);

#endif
