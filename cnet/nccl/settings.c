#define _GNU_SOURCE
#include "settings.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ports/port_chaos.h"

#define NAME_LONGEST 32

enum kind { TEXT, OUTPUT, FAULTS, NUMBER, AUTO_NUMBER, WORD, CPUS, ELSEWHERE };

struct setting {
    const char *name;
    enum kind kind;
    size_t at;                /* in struct settings */
    const char *const *words; /* WORD: the value is its number in this list */
    uint64_t least, most;     /* NUMBER, AUTO_NUMBER, whose value of "auto" is 0 */
    const char *allowed;      /* in words, for errors */
};

const char *const settings_cc[] = {"swift", "fixed", NULL};
const char *const settings_ports[] = {"auto", "xdp",     "udp",     "tcp",
                                      "mem",  "xdp,tcp", "udp,tcp", NULL};
static const char *const progresses[] = {"auto", "threads", "inline", NULL};
static const char *const xdp_modes[] = {"auto", "copy", NULL};
static const char *const crcs[] = {"auto", "on", "off", NULL};
static const char *const switches[] = {"0", "1", NULL};

#define AT(member) offsetof(struct settings, member)

static const struct setting list[] = {
    {"HARP_IFNAME", TEXT, AT(interfaces), .allowed = "at most 511 characters"},
    {"HARP_PORT", WORD, AT(port), settings_ports,
     .allowed = "auto, xdp, udp, tcp, mem, or xdp,tcp and udp,tcp for a trial"},
    {"HARP_PROGRESS", WORD, AT(progress), progresses, .allowed = "auto, threads or inline"},
    {"HARP_CPUS", CPUS, AT(cpus), .allowed = "CPU numbers and ranges, as 2,4-7"},
    {"HARP_ENGINES", AUTO_NUMBER, AT(engines), NULL, 1, 16, "auto, or 1 to 16"},
    {"HARP_PATHS", NUMBER, AT(paths), NULL, 1, 64, "1 to 64"},
    {"HARP_SOCKETS", AUTO_NUMBER, AT(sockets), NULL, 1, 64, "auto, or 1 to 64"},
    {"HARP_RAILS", TEXT, AT(rails), .allowed = "at most 511 characters"},
    {"HARP_PLAN", TEXT, AT(plan), .allowed = "at most 511 characters"},
    {"HARP_TUNER", TEXT, AT(tuner), .allowed = "at most 511 characters"},
    {"HARP_CRC", WORD, AT(crc), crcs, .allowed = "auto, on or off"},
    {"HARP_CC", WORD, AT(cc), settings_cc, .allowed = "swift or fixed"},
    {"HARP_MTU", NUMBER, AT(mtu), NULL, 576, 65535, "576 to 65535"},
    {"HARP_SPEED", NUMBER, AT(speed_mbps), NULL, 1, 1600000, "1 to 1600000 (Mb/s)"},
    {"HARP_TRAFFIC_CLASS", NUMBER, AT(traffic_class), NULL, 0, 255, "0 to 255"},
    {"HARP_TIMEOUT", NUMBER, AT(timeout_s), NULL, 1, 86400, "1 to 86400 (seconds)"},
    {"HARP_STATS", WORD, AT(stats), switches, .allowed = "0 or 1"},
    {"HARP_DUMP", OUTPUT, AT(dump),
     .allowed = "a file that can be written, at most 511 characters"},
    {"HARP_FAULTS", FAULTS, AT(faults), .allowed = "at most 511 characters"},
    {"HARP_XDP", WORD, AT(xdp), xdp_modes, .allowed = "auto or copy"},
    {"HARP_BUSY_POLL", NUMBER, AT(busy_poll_us), NULL, 0, 100000, "0 to 100000 (microseconds)"},
    {"HARP_CONF_FILE", ELSEWHERE, 0, .allowed = "a path, in the environment only"},
};

enum { LIST_N = sizeof list / sizeof list[0] };

/* ---- One value ---- */

static bool read_number(const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end || errno || number < least || number > most)
        return false;
    *out = number;
    return true;
}

static bool read_word(const char *text, const char *const *words, uint64_t *out)
{
    for (uint64_t i = 0; words[i]; i++)
        if (strcasecmp(text, words[i]) == 0) {
            *out = i;
            return true;
        }
    return false;
}

static unsigned long host_cpus(void)
{
    long n = sysconf(_SC_NPROCESSORS_CONF);
    return n > 0 && n < UINT16_MAX ? (unsigned long)n : UINT16_MAX;
}

static bool add_cpus(struct settings_cpus *cpus, unsigned long first, unsigned long last)
{
    if (first > last || last >= host_cpus() || last - first >= SETTINGS_CPUS - cpus->n)
        return false;
    for (unsigned long cpu = first; cpu <= last; cpu++)
        cpus->cpu[cpus->n++] = (uint16_t)cpu;
    return true;
}

static bool read_cpus(const char *text, struct settings_cpus *cpus)
{
    cpus->n = 0;
    for (;;) {
        char *end;
        if (!isdigit((unsigned char)*text))
            return false;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (*end == '-') {
            text = end + 1;
            if (!isdigit((unsigned char)*text))
                return false;
            last = strtoul(text, &end, 10);
        }
        if (!add_cpus(cpus, first, last))
            return false;
        if (!*end)
            return true;
        if (*end != ',')
            return false;
        text = end + 1;
    }
}

static bool read_text(const char *text, char *out)
{
    if (strlen(text) >= SETTINGS_TEXT_BYTES)
        return false;
    strcpy(out, text);
    return true;
}

/* Whether the file can be written, or made; it is not made before there is something to write. */
static bool read_output(const char *text, char *out)
{
    if (!read_text(text, out))
        return false;
    int file = open(text, O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC);
    if (file >= 0)
        return close(file) == 0;
    char folder[SETTINGS_TEXT_BYTES] = ".";
    const char *slash = strrchr(text, '/');
    if (slash)
        snprintf(folder, sizeof folder, "%.*s", slash == text ? 1 : (int)(slash - text), text);
    return access(text, F_OK) != 0 && access(folder, W_OK | X_OK) == 0;
}

static bool read_value(const struct setting *setting, const char *text, void *at)
{
    struct harp_chaos faults;
    char why[HARP_WHY_BYTES];
    switch (setting->kind) {
    case TEXT:
        return read_text(text, at);
    case FAULTS:
        return read_text(text, at) && harp_chaos_parse(text, &faults, why) == 0;
    case OUTPUT:
        return read_output(text, at);
    case AUTO_NUMBER:
        if (strcasecmp(text, "auto") == 0) {
            *(uint64_t *)at = 0;
            return true;
        } /* fall through */
    case NUMBER:
        return read_number(text, setting->least, setting->most, at);
    case WORD:
        return read_word(text, setting->words, at);
    case CPUS:
        return read_cpus(text, at);
    default:
        return true; /* it was used before */
    }
}

/* ---- Names ---- */

static const struct setting *find_setting(const char *name)
{
    for (int i = 0; i < LIST_N; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    return NULL;
}

/* Letters to insert, delete or replace to make one of the other (Levenshtein). */
static uint32_t edit_distance(const char *a, const char *b)
{
    uint32_t row[NAME_LONGEST + 1];
    size_t length = strnlen(b, NAME_LONGEST);
    for (uint32_t j = 0; j <= length; j++)
        row[j] = j;
    for (uint32_t i = 0; a[i]; i++) {
        uint32_t corner = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < length; j++) {
            uint32_t least = corner + (a[i] != b[j]);
            corner = row[j + 1];
            least = row[j] + 1 < least ? row[j] + 1 : least;
            row[j + 1] = corner + 1 < least ? corner + 1 : least;
        }
    }
    return row[length];
}

static const char *nearest_name(const char *name)
{
    const struct setting *best = &list[0];
    for (int i = 1; i < LIST_N; i++)
        if (edit_distance(name, list[i].name) < edit_distance(name, best->name))
            best = &list[i];
    return best->name;
}

/* ---- Where values come from ---- */

/* Say the allowed values. */
static void say_allowed(const struct setting *setting, const char *value, char *out)
{
    struct harp_chaos faults;
    if (setting->kind == FAULTS && strlen(value) < SETTINGS_TEXT_BYTES)
        harp_chaos_parse(value, &faults, out);
    else if (setting->kind == CPUS)
        snprintf(out, HARP_WHY_BYTES, "possible is %s, from 0 to %lu", setting->allowed,
                 host_cpus() - 1);
    else
        snprintf(out, HARP_WHY_BYTES, "possible is %s", setting->allowed);
}

static bool set_value(struct settings *settings, const char *where, const char *name,
                      const char *value, char *why, size_t room)
{
    const struct setting *setting = find_setting(name);
    char instead[HARP_WHY_BYTES];
    if (!*value || read_value(setting, value, (char *)settings + setting->at))
        return true;
    say_allowed(setting, value, instead);
    snprintf(why, room, "%s%s is \"%.100s\": %s", where, name, value, instead);
    return false;
}

bool settings_allow(const char *name, const char *value, char *why, size_t room)
{
    struct settings settings;
    return !find_setting(name) || set_value(&settings, "", name, value, why, room);
}

static char *trim_spaces(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = 0;
    return text;
}

static bool read_line(struct settings *settings, char *line, const char *where,
                      void (*warn)(const char *format, ...), char *why, size_t room)
{
    char *name = trim_spaces(line), *equals = strchr(name, '=');
    if (!*name || *name == '#')
        return true;
    if (!equals) {
        snprintf(why, room, "%s\"%.60s\" is no line NAME=value", where, name);
        return false;
    }
    *equals = 0;
    name = trim_spaces(name);
    const struct setting *setting = find_setting(name);
    if (setting && setting->kind == ELSEWHERE) {
        snprintf(why, room, "%s%s is not for a file: possible is %s", where, name,
                 setting->allowed);
        return false;
    }
    if (setting)
        return set_value(settings, where, name, trim_spaces(equals + 1), why, room);
    warn("%s%s is not known and changes nothing; the nearest name is %s", where, name,
         nearest_name(name));
    return true;
}

/* Skips the mark that editors on Windows put in front of UTF-8. */
static char *skip_byte_order_mark(char *line)
{
    return strncmp(line, "\xef\xbb\xbf", 3) == 0 ? line + 3 : line;
}

static bool is_unreadable(const char *path, char *why, size_t room)
{
    snprintf(why, room, "the file of settings %.200s cannot be read: %s", path, strerror(errno));
    return false;
}

static bool read_file(struct settings *settings, void (*warn)(const char *format, ...), char *why,
                      size_t room)
{
    const char *asked = getenv("HARP_CONF_FILE"), *path = asked && *asked ? asked : SETTINGS_FILE;
    FILE *file = fopen(path, "re");
    if (!file && path != asked && (errno == ENOENT || errno == ENOTDIR))
        return true;
    if (!file)
        return is_unreadable(path, why, room);
    char *line = NULL, where[160];
    size_t line_room = 0;
    bool right = true;
    for (int number = 1; right && getline(&line, &line_room, file) >= 0; number++) {
        snprintf(where, sizeof where, "%.120s:%d: ", path, number);
        char *text = number == 1 ? skip_byte_order_mark(line) : line;
        right = read_line(settings, text, where, warn, why, room);
    }
    if (right && !feof(file))
        right = is_unreadable(path, why, room);
    free(line);
    fclose(file);
    return right;
}

static bool read_environment(struct settings *settings, void (*warn)(const char *format, ...),
                             char *why, size_t room)
{
    for (char **at = environ; at && *at; at++) {
        char name[64];
        const char *equals = strchr(*at, '=');
        if (strncmp(*at, "HARP_", 5) != 0 || !equals)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(equals - *at), *at);
        if (!find_setting(name))
            warn("%s is not known and changes nothing; the nearest name is %s", name,
                 nearest_name(name));
        else if (!set_value(settings, "", name, equals + 1, why, room))
            return false;
    }
    return true;
}

bool settings_read(struct settings *settings, void (*warn)(const char *format, ...), char *why,
                   size_t room)
{
    *settings = (struct settings){.paths = 1, .timeout_s = 30};
    const char *nccl = getenv("NCCL_SOCKET_IFNAME");
    if (nccl && !read_text(nccl, settings->interfaces))
        warn("NCCL_SOCKET_IFNAME does not count for HARP: it has more than %d characters",
             SETTINGS_TEXT_BYTES - 1);
    return read_file(settings, warn, why, room) && read_environment(settings, warn, why, room);
}

bool settings_match(const char *names, const char *interface)
{
    bool without = *names == '^', whole, found = false;
    names += without;
    whole = *names == '=';
    names += whole;
    if (!*names)
        return true;
    while (*names && !found) {
        size_t length = strcspn(names, ",");
        size_t name = strcspn(names, ":,"); /* NCCL allows a port behind a colon */
        found = name && strncmp(names, interface, name) == 0 && (!whole || !interface[name]);
        names += length + (names[length] == ',');
    }
    return found != without;
}
