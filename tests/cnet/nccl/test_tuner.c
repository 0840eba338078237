/* The tuner as NCCL uses it, and tables that are cut off or changed.
 *
 *     test_nccl_tuner ask PLUGIN VERSION RANKS NODES    questions on standard input, a line each:
 *                     COLLECTIVE BYTES ALGORITHMS PROTOCOLS COST...
 *         answers CHANNELS COST..., and writes what the tuner logs to standard error
 *     test_nccl_tuner change                            a table with each byte cut off or changed
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "engine/engine.h"
#include "nccl/tuner_abi.h"
#include "nccl/tuner_table.h"
#include "virtual/random.h"

#define COSTS_MOST 64

static void write_log(enum nccl_log_level level, unsigned long parts, const char *file, int line,
                      const char *format, ...)
{
    va_list arguments;
    (void)file, (void)line;
    CHECK(parts & NCCL_PART_TUNING, "another part of the log: %lx", parts);
    fprintf(stderr, "%s: ", level == NCCL_LOG_WARN ? "warn" : "info");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

/* The versions differ in the order of init's arguments. */
struct tuner_end {
    nccl_get_coll_info ask;
    enum nccl_result (*end)(void *context);
    void *context;
};

static struct tuner_end open_tuner(void *table, int version, size_t ranks, size_t nodes)
{
    struct tuner_end made = {.context = &made};
    enum nccl_result result;
    if (version == 4) {
        struct nccl_tuner_v4 *tuner = table;
        result = tuner->init(ranks, nodes, write_log, &made.context);
        made.ask = tuner->getCollInfo, made.end = tuner->destroy;
    } else {
        struct nccl_tuner_v6 *tuner = table; /* begins like version 5 */
        result = tuner->init(&made.context, 7, ranks, nodes, write_log, NULL, NULL);
        made.ask = tuner->getCollInfo, made.end = tuner->finalize;
        CHECK(version == 5 || !tuner->getChunkSize, "chunks are NCCL's");
    }
    CHECK(result == NCCL_SUCCESS, "init gives %d", result);
    return made;
}

static void answer_questions(const struct tuner_end *tuner)
{
    int collective, algorithms, protocols, channels;
    size_t bytes;
    while (scanf("%d %zu %d %d", &collective, &bytes, &algorithms, &protocols) == 4) {
        int n = algorithms * protocols;
        CHECK(n > 0 && n <= COSTS_MOST, "%d costs", n);
        float *costs = malloc((size_t)n * sizeof *costs); /* no byte more, for sanitizers */
        for (int i = 0; i < n; i++)
            CHECK(scanf("%f", &costs[i]) == 1, "a cost is missing");
        channels = 0;
        CHECK(tuner->ask(tuner->context, collective, bytes, 1, (float **)costs, algorithms,
                         protocols, 0, &channels) == NCCL_SUCCESS,
              "an error would end the collective");
        printf("%d", channels);
        for (int i = 0; i < n; i++)
            printf(" %.9g", (double)costs[i]);
        putchar('\n');
        free(costs);
    }
}

static int ask_plugin(char **arguments)
{
    char name[32];
    void *library = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL);
    CHECK(library, "%s", dlerror());
    snprintf(name, sizeof name, "ncclTunerPlugin_v%s", arguments[1]);
    void *table = dlsym(library, name);
    CHECK(table, "%s", dlerror());
    struct tuner_end tuner = open_tuner(table, atoi(arguments[1]), (size_t)atoi(arguments[2]),
                                        (size_t)atoi(arguments[3]));
    struct tuner_end other = open_tuner(table, atoi(arguments[1]), 2, 1);
    CHECK(other.end(other.context) == NCCL_SUCCESS, "one communicator ends before another");
    answer_questions(&tuner);
    CHECK(tuner.end(tuner.context) == NCCL_SUCCESS, "finalize");
    CHECK(dlclose(library) == 0, "%s", dlerror());
    return 0;
}

/* ---- The reader ---- */

static const char text[] =
    "{\"format\": \"harp-plan-1\", \"fabric\": \"0123abcd\", \"flows\": [{\"from\": 0}],\n"
    " \"tuning\": {\"format\": \"harp-tuning-1\", \"source\": {\"kind\": \"simulated\"},\n"
    "  \"communicators\": [{\"ranks\": 16, \"nodes\": 2, \"rows\": [\n"
    "   {\"collective\": \"AllReduce\", \"min_bytes\": 0, \"max_bytes\": 8191, "
    "\"algorithm\": \"Tree\", \"protocol\": \"LL\"},\n"
    "   {\"collective\": \"AllGather\", \"min_bytes\": 0, \"max_bytes\": 99, \"algorithm\": "
    "\"PAT\", \"protocol\": \"Simple\", \"channels\": 4, \"gain\": 1.25}]}]}}\n";

/* Whether these bytes are a table; the sentence and the answer agree. The copy is exactly `length`
 * bytes long, so the address sanitizer sees a read behind it. */
static bool parse_copy(const char *bytes, size_t length)
{
    struct tuner_table table;
    char why[HARP_WHY_BYTES] = "", *copy = malloc(length ? length : 1);
    memcpy(copy, bytes, length);
    bool right = tuner_table_parse(&table, copy, length, 16, 2, why);
    CHECK(right == !*why, "answer %d, sentence \"%s\"", right, why);
    CHECK(right || !table.rows_n, "rows of a wrong file");
    for (uint32_t i = 0; i < table.rows_n; i++)
        CHECK(table.rows[i].algorithm < NCCL_ALGORITHMS &&
                  table.rows[i].protocol < NCCL_PROTOCOLS &&
                  table.rows[i].channels <= TUNER_CHANNELS_MOST,
              "a row that is not in NCCL's table");
    tuner_table_free(&table);
    free(copy);
    return right;
}

/* Pieces of JSON and of tables written over a few places. */
static void check_random_changes(void)
{
    static const char *const pieces[] = {"{",      "}",    "[",    "]",   ":",
                                         ",",      "\"",   "\\",   "\0",  "LL",
                                         "-1",     "99",   "null", "1e9", "18446744073709551616",
                                         "\n ",    "PAT",  "[[",   "{}",  "rows",
                                         "format", "ranks"};
    const size_t pieces_n = sizeof pieces / sizeof *pieces;
    char changed[sizeof text];
    uint64_t state = 1;
    for (int round = 0; round < 40000; round++) {
        memcpy(changed, text, sizeof text);
        for (uint64_t left = 1 + virtual_below(&state, 4); left; left--) {
            const char *piece = pieces[virtual_below(&state, pieces_n)];
            size_t length = *piece ? strlen(piece) : 1;
            memcpy(changed + virtual_below(&state, sizeof text - length), piece, length);
        }
        parse_copy(changed, sizeof text - 1);
    }
}

static int change_table(void)
{
    struct tuner_table table;
    char why[HARP_WHY_BYTES], changed[sizeof text], name[32];
    CHECK(tuner_table_parse(&table, text, sizeof text - 1, 16, 2, why), "%s", why);
    CHECK(table.found && table.rows_n == 2, "%u rows", table.rows_n);
    tuner_row_name(tuner_table_find(&table, 0, NCCL_ALL_GATHER, 99), name, sizeof name);
    CHECK(strcmp(name, "PAT Simple") == 0, "%s", name);
    CHECK(!tuner_table_find(&table, 0, NCCL_ALL_REDUCE, 8192), "beyond the row");
    tuner_table_free(&table);
    CHECK(tuner_table_parse(&table, text, sizeof text - 1, 16, 4, why) && table.found &&
              !table.rows_n,
          "rows of another communicator");
    tuner_table_free(&table);
    for (size_t n = 0; n < sizeof text - 2; n++)
        CHECK(!parse_copy(text, n), "cut after %zu bytes it is a table", n);
    for (size_t i = 0; i < sizeof text - 1; i++)
        for (const char *other = "{}[],:\"\\0x \n"; *other; other++) {
            memcpy(changed, text, sizeof text);
            changed[i] = *other;
            parse_copy(changed, sizeof text - 1);
        }
    check_random_changes();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "ask") == 0)
        return ask_plugin(argv + 2);
    return argc == 2 && strcmp(argv[1], "change") == 0 ? change_table() : 2;
}
