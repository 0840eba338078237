#define _GNU_SOURCE
#include "tuner_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/siphash.h"
#include "engine/engine.h"
#include "json_reader.h"
#include "tuner_abi.h"

#define FORMAT "harp-tuning-1"
#define PLAN_FORMAT "harp-plan-1"
#define WORD_BYTES 32
#define ROWS_MOST 65536 /* of a communicator */

static const char *const collectives[] = {
    [NCCL_BROADCAST] = "Broadcast",  [NCCL_REDUCE] = "Reduce",
    [NCCL_ALL_GATHER] = "AllGather", [NCCL_REDUCE_SCATTER] = "ReduceScatter",
    [NCCL_ALL_REDUCE] = "AllReduce",
};
static const char *const algorithms[] = {
    [NCCL_TREE] = "Tree",
    [NCCL_RING] = "Ring",
    [NCCL_COLLNET_DIRECT] = "CollNetDirect",
    [NCCL_COLLNET_CHAIN] = "CollNetChain",
    [NCCL_NVLS] = "NVLS",
    [NCCL_NVLS_TREE] = "NVLSTree",
    [NCCL_PAT] = "PAT",
};
static const char *const protocols[] = {
    [NCCL_LL] = "LL",
    [NCCL_LL128] = "LL128",
    [NCCL_SIMPLE] = "Simple",
};

#define COUNT(list) (sizeof(list) / sizeof *(list))
_Static_assert(COUNT(collectives) == NCCL_COLLECTIVES, "a name for each collective");
_Static_assert(COUNT(algorithms) == NCCL_ALGORITHMS, "a name for each algorithm");
_Static_assert(COUNT(protocols) == NCCL_PROTOCOLS, "a name for each protocol");

struct reading {
    struct json_reader json;
    struct tuner_table *table;
    uint64_t ranks, nodes; /* of the communicator that is wanted */
    uint32_t room;         /* for rows */
};

/* One of a list of words, by its number; `what` names them all. */
static void read_word(struct json_reader *json, const char *const *words, size_t words_n,
                      const char *what, uint8_t *out)
{
    char word[WORD_BYTES];
    if (!json_text(json, word, sizeof word))
        return;
    for (size_t i = 0; i < words_n; i++)
        if (strcmp(words[i], word) == 0) {
            *out = (uint8_t)i;
            return;
        }
    json->wrong = what;
}

static void add_row(struct reading *reading, const struct tuner_row *row)
{
    struct tuner_table *table = reading->table;
    if (table->rows_n == ROWS_MOST) {
        reading->json.wrong = "at most 65536 rows";
        return;
    }
    if (table->rows_n == reading->room) {
        uint32_t room = reading->room ? 2 * reading->room : 64;
        struct tuner_row *wider = realloc(table->rows, room * sizeof *wider);
        if (!wider) {
            reading->json.wrong = "more memory";
            return;
        }
        table->rows = wider;
        reading->room = room;
    }
    table->rows[table->rows_n++] = *row;
}

enum { ROW_COLLECTIVE = 1, ROW_ALGORITHM = 2, ROW_PROTOCOL = 4, ROW_LEAST = 8, ROW_MOST = 16 };
enum { ROW_WHOLE = 31 };

/* One member of a row; which it was, or 0. */
static int read_row_member(struct json_reader *json, const char *key, struct tuner_row *row)
{
    uint64_t channels = 0;
    if (strcmp(key, "collective") == 0)
        return read_word(json, collectives, COUNT(collectives),
                         "Broadcast, Reduce, AllGather, ReduceScatter or AllReduce",
                         &row->collective),
               ROW_COLLECTIVE;
    if (strcmp(key, "algorithm") == 0)
        return read_word(json, algorithms, COUNT(algorithms),
                         "Tree, Ring, CollNetDirect, CollNetChain, NVLS, NVLSTree or PAT",
                         &row->algorithm),
               ROW_ALGORITHM;
    if (strcmp(key, "protocol") == 0)
        return read_word(json, protocols, COUNT(protocols), "LL, LL128 or Simple", &row->protocol),
               ROW_PROTOCOL;
    if (strcmp(key, "min_bytes") == 0)
        return json_number(json, UINT64_MAX, &row->min_bytes), ROW_LEAST;
    if (strcmp(key, "max_bytes") == 0)
        return json_number(json, UINT64_MAX, &row->max_bytes), ROW_MOST;
    if (strcmp(key, "channels") == 0)
        json_number(json, TUNER_CHANNELS_MOST, &channels), row->channels = (uint8_t)channels;
    else
        json_skip(json);
    return 0;
}

static void read_row(struct reading *reading, bool wanted)
{
    struct json_reader *json = &reading->json;
    struct tuner_row row = {.channels = 0};
    int members = 0;
    char key[WORD_BYTES];
    json_take(json, '{');
    for (bool first = true; json_member(json, &first, key, sizeof key);) {
        members |= read_row_member(json, key, &row);
    }
    if (json->wrong)
        return;
    if (members != ROW_WHOLE)
        json->wrong = "collective, min_bytes, max_bytes, algorithm and protocol in each row";
    else if (row.min_bytes > row.max_bytes)
        json->wrong = "min_bytes up to max_bytes in each row";
    else if (wanted)
        add_row(reading, &row);
}

static void read_rows(struct reading *reading, bool wanted)
{
    json_take(&reading->json, '[');
    for (bool first = true; json_next(&reading->json, ']', &first);)
        read_row(reading, wanted);
}

/* Rows come after the numbers of the job that they are for, so that one pass is enough. */
static void read_communicator(struct reading *reading)
{
    struct json_reader *json = &reading->json;
    uint64_t ranks = 0, nodes = 0;
    char key[WORD_BYTES];
    json_take(json, '{');
    for (bool first = true; json_member(json, &first, key, sizeof key);) {
        if (strcmp(key, "ranks") == 0)
            json_number(json, INT32_MAX, &ranks);
        else if (strcmp(key, "nodes") == 0)
            json_number(json, INT32_MAX, &nodes);
        else if (strcmp(key, "rows") == 0 && (!ranks || !nodes))
            json->wrong = "ranks and nodes, above 0, before the rows";
        else if (strcmp(key, "rows") == 0)
            read_rows(reading, ranks == reading->ranks && nodes == reading->nodes);
        else
            json_skip(json);
    }
}

static void read_communicators(struct reading *reading)
{
    json_take(&reading->json, '[');
    for (bool first = true; json_next(&reading->json, ']', &first);)
        read_communicator(reading);
    reading->table->found = true;
}

static void check_format(struct reading *reading, const char *format, bool in_plan)
{
    struct json_reader *json = &reading->json;
    bool is_table = strcmp(format, FORMAT) == 0;
    if (json->wrong)
        return;
    if (!is_table && (in_plan || strcmp(format, PLAN_FORMAT) != 0))
        json->wrong = "format " FORMAT ", as this HARP reads it";
    else if (is_table && !reading->table->found)
        json->wrong = "communicators";
}

/* A table, or (not within one) a plan with a table. */
static void read_object(struct reading *reading, bool in_plan)
{
    struct json_reader *json = &reading->json;
    char key[WORD_BYTES], format[WORD_BYTES] = "";
    json_take(json, '{');
    for (bool first = true; json_member(json, &first, key, sizeof key);) {
        if (strcmp(key, "format") == 0)
            json_text(json, format, sizeof format);
        else if (strcmp(key, "communicators") == 0)
            read_communicators(reading);
        else if (strcmp(key, "tuning") == 0 && !in_plan)
            read_object(reading, true);
        else
            json_skip(json);
    }
    check_format(reading, format, in_plan);
}

bool tuner_table_parse(struct tuner_table *table, const char *text, size_t length, uint64_t ranks,
                       uint64_t nodes, char *why)
{
    static const struct harp_key no_key;
    *table = (struct tuner_table){.rows_n = 0};
    struct reading reading = {
        .json = {.at = text, .end = text + length},
        .table = table,
        .ranks = ranks,
        .nodes = nodes,
    };
    read_object(&reading, false);
    json_ends(&reading.json);
    if (reading.json.wrong) {
        snprintf(why, HARP_WHY_BYTES, "line %u is no tuning table's: expected %s",
                 json_line(&reading.json, text), reading.json.wrong);
        tuner_table_free(table);
        return false;
    }
    table->fingerprint = harp_siphash(&no_key, (const uint8_t *)text, length);
    return true;
}

bool tuner_table_read(struct tuner_table *table, const char *path, uint64_t ranks, uint64_t nodes,
                      char *why)
{
    size_t length = 0;
    *table = (struct tuner_table){.rows_n = 0};
    char *text = json_file_read(path, &length, why);
    bool right = text && tuner_table_parse(table, text, length, ranks, nodes, why);
    free(text);
    return right;
}

void tuner_table_free(struct tuner_table *table)
{
    free(table->rows);
    *table = (struct tuner_table){.rows_n = 0};
}

const struct tuner_row *tuner_table_find(const struct tuner_table *table, uint32_t from,
                                         int collective, uint64_t bytes)
{
    for (uint32_t i = from; i < table->rows_n; i++) {
        const struct tuner_row *row = &table->rows[i];
        if (row->collective == collective && row->min_bytes <= bytes && bytes <= row->max_bytes)
            return row;
    }
    return NULL;
}

void tuner_row_name(const struct tuner_row *row, char *out, size_t room)
{
    snprintf(out, room, "%s %s", algorithms[row->algorithm], protocols[row->protocol]);
}
