/* The command: reads options, and supervises a child for each scenario. */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POLL_MS = 10, GRACE_MS = 5000 };
enum { SAME = 'o', BAD = 'x' }; /* what supervisors tell each other */

static const struct scenario *const groups[] = {scenarios_traffic, scenarios_ends, scenarios_deaths,
                                                scenarios_speed, scenarios_ring};
static const char *const group_names[] = {"traffic", "ends", "deaths", "speed-and-table", "ring"};
enum { GROUPS = 5, TESTS = 3 };

static void list_scenarios(void)
{
    for (int g = 0; g < GROUPS; g++) {
        printf("%s\n", group_names[g]);
        for (const struct scenario *s = groups[g]; s->name; s++)
            printf("    %-14s %s\n", s->name, s->what);
    }
}

static const struct scenario *find_scenario(const char *name)
{
    for (int g = 0; g < GROUPS; g++)
        for (const struct scenario *s = groups[g]; s->name; s++)
            if (strcmp(s->name, name) == 0)
                return s;
    fail("there is no scenario %s; --list shows them", name);
}

/* ---- One scenario, supervised ---- */

static void run_child(const struct options *options, const struct scenario *scenario, int meet)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    region_guard();
    struct world world = {.options = options, .rank = options->rank, .meet = meet};
    scenario->run(&world);
    exit(0);
}

/* Its work when it had to be killed. */
static void describe_hang(double limit_s)
{
    char *at = shared->verdict, *end = at + sizeof(shared->verdict);
    at += snprintf(at, (size_t)(end - at), "not done after %.0f s, at: %s", limit_s, shared->step);
    for (int i = 0; i < FLOWS_SHOWN && end - at > 80; i++) {
        struct shown *f = &shared->flows[i];
        uint64_t posted = atomic_load(&f->posted), done = atomic_load(&f->done);
        if (f->what && (posted != done || done != f->of))
            at += snprintf(at, (size_t)(end - at), "; link %d: %s, %llu posted, %llu done", i,
                           f->what, (unsigned long long)posted, (unsigned long long)done);
    }
}

/* The peer's word, if it is there within so long; 0 if not. */
static char hear_word(int control, int most_ms)
{
    struct pollfd ready = {.fd = control, .events = POLLIN};
    char word = 0;
    if (poll(&ready, 1, most_ms) <= 0)
        return 0;
    return recv(control, &word, 1, 0) == 1 ? word : BAD;
}

static void end_child(pid_t pid, int *status)
{
    kill(pid, SIGKILL);
    waitpid(pid, status, 0);
}

/* Waits for the child's end, the limit, or the other rank's word that there is nothing to wait for.
 * Returns what the other rank said, or 0. */
static char watch_child(const struct options *options, const struct scenario *scenario, pid_t pid,
                        int control, bool *good)
{
    int status = 0;
    char word = 0;
    bool victim = scenario->mortal && options->rank == 1;
    uint64_t until = now_ns() + (uint64_t)(options->limit_s * 1e9), heard_ns = 0;
    for (;;) {
        /* A rank that is to die but reports a fault is not waited for. */
        if ((!victim || shared->verdict[0]) && waitpid(pid, &status, WNOHANG) == pid) {
            *good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
            break;
        }
        if (word)
            poll(NULL, 0, POLL_MS);
        else if ((word = hear_word(control, POLL_MS)))
            heard_ns = now_ns();
        /* Wait a moment for this rank's own report. */
        if (word == BAD && !victim && now_ns() < heard_ns + GRACE_MS / 5 * 1000000u)
            continue;
        if (word && (word == BAD || victim)) {
            end_child(pid, &status);
            *good = victim && word == SAME && !shared->verdict[0];
            if (!*good && !shared->verdict[0])
                strcpy(shared->verdict, "the other rank failed");
            return word;
        }
        if (now_ns() < until)
            continue;
        end_child(pid, &status);
        describe_hang(options->limit_s);
        *good = false;
        return word;
    }
    if (!*good && !shared->verdict[0] && WIFSIGNALED(status))
        snprintf(shared->verdict, sizeof(shared->verdict), "died of signal %d (%s), at: %s",
                 WTERMSIG(status), strsignal(WTERMSIG(status)), shared->step);
    if (!*good && !shared->verdict[0])
        snprintf(shared->verdict, sizeof(shared->verdict),
                 "exit code %d, at: %s; what it wrote to stderr says more", WEXITSTATUS(status),
                 shared->step);
    return word;
}

static bool run_one(const struct options *options, const struct scenario *scenario,
                    struct meeting meeting)
{
    bool good = false;
    uint64_t begun = now_ns();
    memset(shared, 0, sizeof(*shared));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        run_child(options, scenario, meeting.meet);
    char word = watch_child(options, scenario, pid, meeting.control, &good);
    char said = good ? SAME : BAD;
    if (send(meeting.control, &said, 1, MSG_NOSIGNAL) != 1)
        word = BAD;
    if (!word) /* the other may come to its own limit */
        word = hear_word(meeting.control, (int)(options->limit_s * 1e3) + GRACE_MS);
    /* Both children are gone: what the one has not read is not for the next. */
    char rest[4096];
    while (recv(meeting.meet, rest, sizeof(rest), MSG_DONTWAIT) > 0)
        ;
    char drained = SAME;
    if (send(meeting.control, &drained, 1, MSG_NOSIGNAL) != 1 ||
        !hear_word(meeting.control, GRACE_MS))
        word = BAD;
    if (good && word != SAME)
        strcpy(shared->verdict, "the other rank failed");
    good = good && word == SAME;
    FILE *out = options->json ? stderr : stdout;
    if (!good)
        fprintf(out, "FAIL %-14s rank %d: %s\n", scenario->name, options->rank, shared->verdict);
    else if (!options->json)
        fprintf(out, "ok   %-14s %.2f s%s%s\n", scenario->name, (double)(now_ns() - begun) * 1e-9,
                shared->said[0] ? "; it said: " : "", shared->said);
    fflush(out);
    return good;
}

/* ---- Options ---- */

__attribute__((noreturn)) static void usage(int code)
{
    fputs("usage: client [options] PLUGIN [SCENARIO ...]\n"
          "  Rank 0 prints 'ready PLACE' and waits; rank 1 is started with --handle PLACE.\n"
          "  Without scenarios: all of traffic and ends, but not deaths.\n"
          "    --handle PLACE  be rank 1; where rank 0 is to be met\n"
          "    --meet HOST:PORT  rank 0: meet there, over TCP, and not in a file\n"
          "    --version N     of the table, 6 to 12 (the newest)\n"
          "    --device N      of the plugin's (0)\n"
          "    --traffic-class N  that NCCL is configured with (-1: none)\n"
          "    --limit S       of one scenario (60)\n"
          "    --bound S       within which a lost peer is an error (10)\n"
          "    --quiet S       that nobody calls the plugin, in `quiet` (1)\n"
          "    --largest B     message (67108864)\n"
          "    --without NAME  of a scenario that is left out\n"
          "    --seed N        of sizes and order (1)\n"
          "    --size B, --depth N, --seconds S, --cpu N  of speed, both, ring, latency and table\n"
          "    --list          the scenarios\n"
          "    --verbose       what the plugin tells NCCL's log\n",
          code ? stderr : stdout);
    exit(code);
}

static void read_option(struct options *o, int option, const char *value, const char **place)
{
    switch (option) {
    case 'h':
        o->rank = 1;
        *place = value;
        break;
    case 'm':
        *place = value;
        break;
    case 'n':
        o->version = atoi(value);
        break;
    case 'd':
        o->device = atoi(value);
        break;
    case 'k':
        o->traffic_class = atoi(value);
        break;
    case 'l':
        o->limit_s = atof(value);
        break;
    case 'b':
        o->bound_s = atof(value);
        break;
    case 'q':
        o->quiet_s = atof(value);
        break;
    case 'g':
        o->largest = strtoull(value, NULL, 0);
        break;
    case 's':
        o->seed = strtoull(value, NULL, 0);
        break;
    case 'z':
        o->size = strtoull(value, NULL, 0);
        break;
    case 'p':
        o->depth = atoi(value);
        break;
    case 't':
        o->seconds = atof(value);
        break;
    case 'c':
        o->cpu = atoi(value);
        break;
    case 'v':
        o->verbose = true;
        break;
    case 'w':
        o->without = find_scenario(value)->name;
        break;
    case 'i':
        list_scenarios();
        exit(0);
    case 'e':
        usage(0);
    default:
        usage(2);
    }
}

static const struct option names[] = {{"handle", 1, 0, 'h'},
                                      {"meet", 1, 0, 'm'},
                                      {"version", 1, 0, 'n'},
                                      {"device", 1, 0, 'd'},
                                      {"limit", 1, 0, 'l'},
                                      {"bound", 1, 0, 'b'},
                                      {"quiet", 1, 0, 'q'},
                                      {"largest", 1, 0, 'g'},
                                      {"seed", 1, 0, 's'},
                                      {"size", 1, 0, 'z'},
                                      {"depth", 1, 0, 'p'},
                                      {"seconds", 1, 0, 't'},
                                      {"cpu", 1, 0, 'c'},
                                      {"list", 0, 0, 'i'},
                                      {"help", 0, 0, 'e'},
                                      {"verbose", 0, 0, 'v'},
                                      {"without", 1, 0, 'w'},
                                      {"traffic-class", 1, 0, 'k'},
                                      {0}};

static bool in_question(const struct options *options, const struct scenario *scenario)
{
    return (!options->version || options->version >= scenario->since) &&
           !(options->without && strcmp(options->without, scenario->name) == 0);
}

static int run_all(const struct options *options, char **wanted, struct meeting meeting)
{
    int failures = 0;
    for (int i = 0; wanted[i]; i++)
        failures += !run_one(options, find_scenario(wanted[i]), meeting);
    if (wanted[0])
        return failures;
    for (int g = 0; g < TESTS - 1; g++)
        for (const struct scenario *s = groups[g]; s->name; s++)
            failures += in_question(options, s) && !run_one(options, s, meeting);
    return failures;
}

int main(int count, char **words)
{
    const char *place = NULL;
    struct options o = {.limit_s = 60,
                        .bound_s = 10,
                        .quiet_s = 1,
                        .largest = 64u << 20,
                        .seed = 1,
                        .cpu = -1,
                        .traffic_class = NCCL_UNDEFINED,
                        .depth = 8,
                        .size = 4u << 20,
                        .seconds = 1};
    for (int option; (option = getopt_long(count, words, "", names, NULL)) != -1;)
        read_option(&o, option, optarg, &place);
    if (optind == count || o.depth < 1 || o.depth > NCCL_REQUESTS || o.size == 0)
        usage(2);
    o.path = words[optind];
    char **wanted = words + optind + 1;
    for (int i = 0; wanted[i]; i++)
        find_scenario(wanted[i]);
    o.json = wanted[0] && find_scenario(wanted[0])->json;
    signal(SIGPIPE, SIG_IGN);
    struct meeting meeting = meet_open(o.rank, place);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return run_all(&o, wanted, meeting) ? 1 : 0;
}
