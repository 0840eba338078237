#include "ports/port_chaos.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct unit {
    const char *name;
    double factor;
};

static const struct unit shares[] = {{"%", 1e4}, {"ppm", 1}, {NULL, 0}};
static const struct unit times[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
static const struct unit rates[] = {
    {"bit", 1}, {"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}, {NULL, 0}};
static const struct unit sizes[] = {{"", 1}, {"KiB", 1024}, {"MiB", 1 << 20}, {NULL, 0}};
static const struct unit numbers[] = {{"", 1}, {NULL, 0}};

struct key {
    const char *name;
    size_t offset;
    const struct unit *units;
    double most;
    const char *allowed;
};

#define KEY(name, field) name, offsetof(struct harp_chaos, field)
#define SHARE shares, 1e6, "0% to 100%, as 1% or 500ppm"
#define TIME times, 60e9, "at most 60s, as 200us or 1.5ms"

static const struct key keys[] = {
    {KEY("drop", drop_ppm), SHARE},
    {KEY("burst", burst_ppm), SHARE},
    {KEY("burst_length", burst_length), numbers, 1e6, "a number of datagrams up to 1000000"},
    {KEY("delay", delay_ns), TIME},
    {KEY("jitter", jitter_ns), TIME},
    {KEY("reorder", reorder_ppm), SHARE},
    {KEY("reorder_delay", reorder_delay_ns), TIME},
    {KEY("duplicate", duplicate_ppm), SHARE},
    {KEY("truncate", truncate_ppm), SHARE},
    {KEY("corrupt", corrupt_ppm), SHARE},
    {KEY("rate", rate_bps), rates, 1e12, "at most 1000Gbit, as 100Mbit or 2.5Gbit"},
    {KEY("bucket", bucket_bytes), sizes, 1 << 30, "at most 1024MiB, as 3000, 128KiB or 1MiB"},
    {KEY("queue", queue_bytes), sizes, 1 << 30, "at most 1024MiB, as 3000, 128KiB or 1MiB"},
    {KEY("seed", seed), numbers, 9007199254740992.0, "a whole number below 2^53"},
};
#define KEYS (sizeof keys / sizeof *keys)
#define WORD 40

static int smaller_of(int a, int b)
{
    return a < b ? a : b;
}

/* Number of letters that must change to turn one word into the other (Levenshtein). */
static int edit_distance(const char *a, const char *b)
{
    int row[WORD + 1], n = (int)strlen(b);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int above = row[j];
            row[j] = smaller_of(smaller_of(above, row[j - 1]) + 1, corner + (a[i - 1] != b[j - 1]));
            corner = above;
        }
    }
    return row[n];
}

static const struct key *nearest_key(const char *word)
{
    const struct key *best = &keys[0];
    for (size_t i = 1; i < KEYS; i++)
        if (edit_distance(keys[i].name, word) < edit_distance(best->name, word))
            best = &keys[i];
    return best;
}

static const struct key *find_key(const char *word, char *why)
{
    for (size_t i = 0; i < KEYS; i++)
        if (strcmp(keys[i].name, word) == 0)
            return &keys[i];
    snprintf(why, HARP_WHY_BYTES, "there is no fault \"%s\"; did you mean \"%s\"?", word,
             nearest_key(word)->name);
    return NULL;
}

static bool read_value(const struct key *key, const char *text, struct harp_chaos *faults)
{
    char *end;
    if (*text < '0' || *text > '9') /* no sign, no "inf" */
        return false;
    double number = strtod(text, &end);
    for (const struct unit *unit = key->units; unit->name; unit++) {
        if (strcmp(end, unit->name) != 0 || !(number * unit->factor <= key->most))
            continue;
        double value = number * unit->factor;
        if (key->units == numbers && value != (double)(uint64_t)value)
            return false;
        uint64_t whole = (uint64_t)(value + 0.5);
        memcpy((char *)faults + key->offset, &whole, sizeof whole);
        return true;
    }
    return false;
}

/* One "key=value". */
static int read_item(char *item, struct harp_chaos *faults, char *why)
{
    char *value = strchr(item, '=');
    if (!value) {
        snprintf(why, HARP_WHY_BYTES, "\"%s\" has no value; faults are written as drop=1%%", item);
        return -EINVAL;
    }
    *value++ = 0;
    const struct key *key = find_key(item, why);
    if (!key)
        return -EINVAL;
    if (!read_value(key, value, faults)) {
        snprintf(why, HARP_WHY_BYTES, "%s=%s: it is %s", item, value, key->allowed);
        return -EINVAL;
    }
    return 0;
}

int harp_chaos_parse(const char *text, struct harp_chaos *faults, char *why)
{
    char item[WORD];
    struct harp_chaos read = {0};
    while (*text) {
        size_t length = strcspn(text, ",");
        if (length == 0 || length >= sizeof item) {
            snprintf(why, HARP_WHY_BYTES, "\"%.40s\": faults are written as drop=1%%,delay=1ms",
                     text);
            return -EINVAL;
        }
        memcpy(item, text, length);
        item[length] = 0;
        int error = read_item(item, &read, why);
        if (error)
            return error;
        text += length;
        if (*text == ',' && *++text == 0) {
            snprintf(why, HARP_WHY_BYTES, "nothing follows the last comma");
            return -EINVAL;
        }
    }
    *faults = read;
    return 0;
}
