/* The command line of a program: a table of options, each with the place of its value.
 *
 *     struct bench_option options[] = {BENCH_OPTION("cpu", &s.cpu), BENCH_OPTION("both", &s.both)};
 *     int rest = bench_read_options(count, words, options, sizeof(options) / sizeof(*options),
 * USAGE);
 *
 * A flag has no value. A wrong option prints the usage and ends the program with status 2.
 */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum bench_kind {
    BENCH_FLAG,
    BENCH_INT,
    BENCH_U16,
    BENCH_U32,
    BENCH_U64,
    BENCH_REAL,
    BENCH_TEXT,
    BENCH_IPV4,
};

struct bench_option {
    const char *name;
    enum bench_kind kind;
    void *value;
};

#define BENCH_OPTION(option_name, place)                                                           \
    {.name = (option_name),                                                                        \
     .kind = _Generic((place),                                                                     \
         bool *: BENCH_FLAG,                                                                       \
         int *: BENCH_INT,                                                                         \
         uint16_t *: BENCH_U16,                                                                    \
         uint32_t *: BENCH_U32,                                                                    \
         uint64_t *: BENCH_U64,                                                                    \
         double *: BENCH_REAL,                                                                     \
         const char **: BENCH_TEXT,                                                                \
         struct in_addr *: BENCH_IPV4),                                                            \
     .value = (place)}

__attribute__((noreturn)) static inline void bench_usage(const char *usage)
{
    fputs(usage, stderr);
    exit(2);
}

/* Write one value; false if the text is not a value. */
static inline bool bench_set_option(const struct bench_option *option, const char *text)
{
    char *end = NULL;
    double real = strtod(text, &end);
    bool number = *text && !*end;
    switch (option->kind) {
    case BENCH_INT:
        *(int *)option->value = (int)real;
        return number;
    case BENCH_U16:
        *(uint16_t *)option->value = (uint16_t)real;
        return number && real >= 0 && real <= UINT16_MAX;
    case BENCH_U32:
        *(uint32_t *)option->value = (uint32_t)real;
        return number && real >= 0 && real <= UINT32_MAX;
    case BENCH_U64:
        *(uint64_t *)option->value = (uint64_t)real;
        return number && real >= 0;
    case BENCH_REAL:
        *(double *)option->value = real;
        return number;
    case BENCH_TEXT:
        *(const char **)option->value = text;
        return true;
    case BENCH_IPV4:
        return inet_aton(text, option->value);
    case BENCH_FLAG:
        break;
    }
    return false;
}

/* Read all options; the other words move to the front behind words[0]. Return their number. */
static inline int bench_read_options(int count, char **words, const struct bench_option *options,
                                     size_t options_count, const char *usage)
{
    int rest = 0;
    for (int i = 1; i < count; i++) {
        if (strncmp(words[i], "--", 2) != 0) {
            words[++rest] = words[i];
            continue;
        }
        size_t at = 0;
        while (at < options_count && strcmp(words[i] + 2, options[at].name) != 0)
            at++;
        if (at == options_count)
            bench_usage(usage);
        if (options[at].kind == BENCH_FLAG)
            *(bool *)options[at].value = true;
        else if (++i == count || !bench_set_option(&options[at], words[i]))
            bench_usage(usage);
    }
    return rest;
}

#endif
