#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "table/table_bags.h"
#include "table/table_cold.h"
#include "table/table_crew.h"
#include "table/table_loops.h"
#include "table/table_state.h"

int64_t harp_embedding_bags_wrong(const int64_t *offsets, uint64_t bags, uint64_t count)
{
    int64_t before = 0;
    for (uint64_t i = 0; i < bags; i++) {
        if (offsets[i] < before || offsets[i] > (int64_t)count || (!i && offsets[i]))
            return (int64_t)i;
        before = offsets[i];
    }
    return -1;
}

struct batch_call {
    const struct harp_embedding_bags *features;
    uint64_t n, tasks;
    atomic_ullong next; /* task of look-ups */
    atomic_int failed;
};

/* A feature's bags are cut into tasks of about this many ids; less is not worth a second thread. */
enum { TASK_IDS = 512, FEW_IDS = 2048 };

static uint64_t feature_tasks(const struct harp_embedding_bags *bags)
{
    uint64_t most = (bags->count + bags->bags) / TASK_IDS + 1;
    return most < bags->bags ? most : bags->bags;
}

/* Take tasks that follow one another: many at first, since the misses of the first ids of a run
 * overlap with nothing, and few at last, so that all workers end together. Returns how many. */
static uint64_t take_tasks(struct batch_call *call, uint32_t workers, uint64_t *first)
{
    unsigned long long next = atomic_load(&call->next);
    uint64_t left, n;
    do {
        left = call->tasks - next;
        n = (left + 2 * workers - 2) / (2 * workers - 1);
    } while (!atomic_compare_exchange_weak(&call->next, &next, next + n));
    *first = next;
    return n;
}

static void look_up_tasks(void *with, uint32_t worker, uint32_t workers)
{
    (void)worker;
    struct batch_call *call = with;
    uint64_t at = 0, begin = 0, first, n; /* `begin` is the first task of feature `at` */
    while ((n = take_tasks(call, workers, &first))) {
        for (uint64_t end = first + n; first < end;) {
            const struct harp_embedding_bags *bags = &call->features[at];
            uint64_t tasks = feature_tasks(bags);
            if (first >= begin + tasks) {
                begin += tasks;
                at++;
                continue;
            }
            uint64_t last = end < begin + tasks ? end : begin + tasks;
            table_read_bags(bags, bags->bags * (first - begin) / tasks,
                            bags->bags * (last - begin) / tasks);
            first = last;
        }
    }
}

static uint32_t threads_for(const struct harp_embedding_bags *features, uint64_t n,
                            uint32_t threads)
{
    uint64_t ids = 0;
    for (uint64_t i = 0; i < n; i++)
        ids += features[i].count + features[i].bags / 4;
    return ids < FEW_IDS ? 1 : threads; /* less work than waking a thread is */
}

int harp_embedding_look_up(const struct harp_embedding_bags *features, uint64_t n, uint32_t threads)
{
    struct batch_call call = {.features = features, .n = n};
    int failed = table_cold_begin(features, n, false);
    if (failed)
        return failed;
    for (uint64_t i = 0; i < n; i++)
        call.tasks += feature_tasks(&features[i]);
    table_crew_run(look_up_tasks, &call, threads_for(features, n, threads));
    table_cold_end(features, n);
    return 0;
}

static void check_gradients(void *with, uint32_t worker, uint32_t workers)
{
    struct batch_call *call = with;
    bool (*finite)(const float *, uint64_t, float) = table_loops()->finite;
    for (uint64_t f = 0; f < call->n; f++) {
        const struct harp_embedding_bags *bags = &call->features[f];
        uint64_t end = bags->bags * (worker + 1) / workers;
        bool fine = !bags->weights || worker || finite(bags->weights, bags->count, 1);
        for (uint64_t bag = bags->bags * worker / workers; fine && bag < end; bag++)
            fine = finite(bags->rows + bag * bags->stride, bags->table->how.dim, 1);
        if (!fine)
            atomic_store(&call->failed, -EDOM);
    }
}

static void add_features(void *with, uint32_t worker, uint32_t workers)
{
    struct batch_call *call = with;
    for (uint64_t f = 0; f < call->n; f++) {
        const struct harp_embedding *table = call->features[f].table;
        for (uint32_t part = 0; part < table->how.shards; part++) {
            if (!table_is_of(table, part, worker, workers))
                continue;
            int failed = table_add_bags(&call->features[f], part);
            if (failed)
                atomic_store(&call->failed, failed);
        }
    }
}

int harp_embedding_add(const struct harp_embedding_bags *features, uint64_t n, uint32_t threads)
{
    struct batch_call call = {.features = features, .n = n};
    threads = threads_for(features, n, threads);
    table_crew_run(check_gradients, &call, threads);
    int failed = atomic_load(&call.failed);
    if (!failed)
        failed = table_cold_begin(features, n, true);
    if (failed)
        return failed;
    table_crew_run(add_features, &call, threads);
    table_cold_end(features, n);
    return atomic_load(&call.failed);
}
