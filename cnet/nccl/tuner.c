/* NCCL's tuner: algorithm, protocol and channels of each collective, from a table that all ranks
 * read (tuner_table.h), which HARP_TUNER names, or that lies in the plan of HARP_PLAN.
 *
 * Where there is no table, no row or nothing that NCCL can have, it leaves NCCL's costs alone, and
 * NCCL goes on by its own model. It never returns an error but for memory that is not there, since
 * one ends the collective: a table is a wish.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/engine.h"
#include "settings.h"
#include "tuner_abi.h"
#include "tuner_table.h"

#define EXPORTED __attribute__((visibility("default")))
#define NAME "HARP"

/* Of a communicator. */
struct tuner {
    nccl_logger logger;
    struct tuner_table table;
    bool has_warned; /* of a row that NCCL cannot follow */
};

#define LOG(logger, level, ...)                                                                    \
    ((logger) ? (logger)(level, NCCL_PART_INIT | NCCL_PART_TUNING, "harp", 0, __VA_ARGS__)         \
              : (void)0)

/* Names that do not exist are the network plugin's to report. */
static void pass_over_warning(const char *format, ...)
{
    (void)format;
}

/* The file of the table, and which setting names it; NULL: none does. */
static const char *find_file(const struct settings *settings, const char **setting)
{
    *setting = *settings->tuner ? "HARP_TUNER" : "HARP_PLAN";
    return *settings->tuner ? settings->tuner : *settings->plan ? settings->plan : NULL;
}

/* Tables are made for HARP: with NCCL_NET=Socket, say, NCCL's own choice is the better one. NCCL
 * compares that name so, too. */
static bool nccl_takes_harp(void)
{
    const char *asked = getenv("NCCL_NET");
    return !asked || !*asked || strcasecmp(asked, NAME) == 0;
}

static bool read_table(struct tuner *tuner, size_t ranks, size_t nodes)
{
    struct settings settings;
    struct tuner_table *table = &tuner->table;
    const char *setting, *path;
    char why[SETTINGS_TEXT_BYTES];
    _Static_assert(sizeof why >= HARP_WHY_BYTES, "a sentence fits");
    if (!settings_read(&settings, pass_over_warning, why, sizeof why)) {
        LOG(tuner->logger, NCCL_LOG_WARN, "TUNER/HARP : no table is read, NCCL chooses: %s", why);
        return false;
    }
    path = find_file(&settings, &setting);
    if (!path || !nccl_takes_harp())
        return false;
    if (!tuner_table_read(table, path, ranks, nodes, why)) {
        LOG(tuner->logger, NCCL_LOG_WARN, "TUNER/HARP : %s %s is not followed, NCCL chooses: %s",
            setting, path, why);
        return false;
    }
    if (!table->found && *settings.tuner)
        LOG(tuner->logger, NCCL_LOG_WARN,
            "TUNER/HARP : %s %s is not followed, NCCL chooses: it is a plan without a tuning table",
            setting, path);
    if (table->found)
        LOG(tuner->logger, NCCL_LOG_INFO,
            "TUNER/HARP : %s %s with fingerprint %016llx, which all ranks must share: %u rows for "
            "%zu ranks on %zu nodes%s",
            setting, path, (unsigned long long)table->fingerprint, table->rows_n, ranks, nodes,
            table->rows_n ? "" : ", so NCCL chooses");
    return table->rows_n > 0;
}

static enum nccl_result start_tuner(void **context, size_t ranks, size_t nodes, nccl_logger logger)
{
    if (!context)
        return NCCL_INVALID_ARGUMENT;
    *context = NULL;
    struct tuner *tuner = calloc(1, sizeof *tuner);
    if (!tuner)
        return NCCL_SYSTEM_ERROR; /* other ranks might have theirs and choose otherwise */
    tuner->logger = logger;
    if (read_table(tuner, ranks, nodes)) {
        *context = tuner;
    } else {
        tuner_table_free(&tuner->table);
        free(tuner);
    }
    return NCCL_SUCCESS;
}

static enum nccl_result init_v4(size_t ranks, size_t nodes, nccl_logger logger, void **context)
{
    return start_tuner(context, ranks, nodes, logger);
}

static enum nccl_result init_v5(void **context, uint64_t communicator, size_t ranks, size_t nodes,
                                nccl_logger logger, void *nvl_domains, void *constants)
{
    (void)communicator, (void)nvl_domains, (void)constants;
    return start_tuner(context, ranks, nodes, logger);
}

/* The cost of what a row wants; NULL: this NCCL does not know it, or cannot have it here. */
static float *find_cost(const struct tuner_row *row, float *costs, int algorithms, int protocols)
{
    if (row->algorithm >= algorithms || row->protocol >= protocols)
        return NULL;
    float *cost = &costs[row->algorithm * protocols + row->protocol];
    return *cost >= 0 ? cost : NULL;
}

static void warn_once(struct tuner *tuner, const struct tuner_row *row, size_t size)
{
    char name[32];
    if (tuner->has_warned)
        return;
    tuner->has_warned = true;
    tuner_row_name(row, name, sizeof name);
    LOG(tuner->logger, NCCL_LOG_WARN,
        "TUNER/HARP : %s for %zu bytes is not to be had here (GPU, links or NCCL_ALGO and "
        "NCCL_PROTO), so NCCL chooses; the like is not said again",
        name, size);
}

static enum nccl_result choose_cost(void *context, int collective, size_t size, int operations,
                                    float **costs, int algorithms, int protocols, int registered,
                                    int *channels)
{
    (void)operations, (void)registered;
    struct tuner *tuner = context;
    if (!tuner || !costs || !channels)
        return NCCL_SUCCESS;
    const struct tuner_row *first = tuner_table_find(&tuner->table, 0, collective, size);
    for (const struct tuner_row *row = first; row;
         row = tuner_table_find(&tuner->table, (uint32_t)(row - tuner->table.rows) + 1, collective,
                                size)) {
        float *cost = find_cost(row, (float *)costs, algorithms, protocols);
        if (!cost)
            continue;
        *cost = 0;
        if (row->channels)
            *channels = row->channels;
        return NCCL_SUCCESS;
    }
    if (first)
        warn_once(tuner, first, size);
    return NCCL_SUCCESS;
}

static enum nccl_result end_tuner(void *context)
{
    struct tuner *tuner = context;
    if (tuner)
        tuner_table_free(&tuner->table);
    free(tuner);
    return NCCL_SUCCESS;
}

EXPORTED const struct nccl_tuner_v4 ncclTunerPlugin_v4 = {
    .name = NAME, .init = init_v4, .getCollInfo = choose_cost, .destroy = end_tuner};
EXPORTED const struct nccl_tuner_v5 ncclTunerPlugin_v5 = {
    .name = NAME, .init = init_v5, .getCollInfo = choose_cost, .finalize = end_tuner};
EXPORTED const struct nccl_tuner_v6 ncclTunerPlugin_v6 = {
    .name = NAME, .init = init_v5, .getCollInfo = choose_cost, .finalize = end_tuner};
