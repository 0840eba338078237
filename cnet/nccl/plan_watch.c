/* The thread that reads the plan of this rank, and delivers each new revision of its file.
 *
 * The thread looks at the file by its name, five times a second, which costs one system call. So it
 * sees when Kubernetes points the name, a symbolic link, at another file, and when a file on a
 * network file system changes. inotify reports neither. The thread never waits for `plugin.lock`,
 * because the caller that ends the plugin holds that lock while it waits for the thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin.h"

#define LOOK_EVERY_MS 200

/* Differs if the content of the file does. */
struct file_state {
    dev_t device;
    ino_t inode;
    off_t bytes;
    struct timespec changed;
};

static struct {
    pthread_t thread;
    bool runs;
    int stop; /* eventfd */
    struct file_state seen;
} watch = {.stop = -1};

static bool look_at_file(struct file_state *state)
{
    struct stat found;
    memset(state, 0, sizeof *state); /* compared byte by byte */
    if (fstatat(AT_FDCWD, plugin.settings.plan, &found, 0) < 0)
        return false;
    state->device = found.st_dev;
    state->inode = found.st_ino;
    state->bytes = found.st_size;
    state->changed = found.st_mtim;
    return true;
}

static bool read_plan(struct plan *plan, char *why)
{
    struct harp_address addresses[PLUGIN_DEVICES];
    uint32_t mbps[PLUGIN_DEVICES];
    struct plan_place place = {
        .addresses = addresses,
        .mbps = mbps,
        .rank = plan_rank_of_environment(),
        .tcp = plugin.settings.port == PORT_TCP,
    };
    for (int i = 0; i < plugin.nics_n; i++) {
        mbps[place.addresses_n] = plugin.nics[i].speed_mbps;
        addresses[place.addresses_n++] = plugin.nics[i].address;
    }
    return plan_read(plan, plugin.settings.plan, &place, why);
}

/* Every engine's connections leave by the ports of `next`. */
static uint32_t move_connections(const struct plan *next, char *why)
{
    char refused[HARP_WHY_BYTES];
    uint32_t moved = 0;
    *why = 0;
    for (int d = 0; d < plugin.devices_n; d++)
        for (uint32_t i = 0; i < PLUGIN_ENGINES; i++) {
            struct harp_engine *engine = plugin.devices[d].engines[i];
            if (!engine)
                continue;
            moved += harp_engine_follow_plan(engine, plugin.plan.flows, next->flows, next->flows_n,
                                             refused);
            if (!*why)
                memcpy(why, refused, sizeof refused);
        }
    return moved;
}

static void deliver_revision(void)
{
    struct plan next;
    char why[HARP_WHY_BYTES];
    if (!read_plan(&next, why) || !plan_is_revision(&plugin.plan, &next, why)) {
        plugin_warn("HARP_PLAN %s has changed and is not followed, connections stay as they are: "
                    "%s",
                    plugin.settings.plan, why);
        plan_free(&next);
        return;
    }
    uint32_t moved = move_connections(&next, why);
    plan_replace(&plugin.plan, &next);
    plugin_info("plan %s has another revision, for fabric %s: %u paths left for other ports",
                plugin.settings.plan, plugin.plan.fabric, moved);
    if (*why)
        plugin_warn("HARP_PLAN: a path stays on the port that it has: %s", why);
}

static void *watch_thread(void *unused)
{
    struct pollfd stop = {.fd = watch.stop, .events = POLLIN};
    struct file_state now;
    while (poll(&stop, 1, LOOK_EVERY_MS) == 0) {
        if (!look_at_file(&now) || memcmp(&now, &watch.seen, sizeof now) == 0 ||
            pthread_mutex_trylock(&plugin.lock) != 0)
            continue;
        watch.seen = now;
        deliver_revision();
        pthread_mutex_unlock(&plugin.lock);
    }
    return unused;
}

static void begin_to_watch(void)
{
    sigset_t all, before;
    watch.stop = eventfd(0, EFD_CLOEXEC);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = watch.stop < 0 ? errno : pthread_create(&watch.thread, NULL, watch_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    watch.runs = error == 0;
    if (error)
        plugin_warn("HARP_PLAN: further revisions of the plan will not be followed: %s",
                    strerror(error));
}

/* A misfit costs the plan and not the job. */
void plan_watch_begin(void)
{
    char why[HARP_WHY_BYTES];
    plugin.strayed = false;
    look_at_file(&watch.seen); /* before it is read: what comes after that is news */
    if (!read_plan(&plugin.plan, why)) {
        plugin_warn("HARP_PLAN %s is not followed, paths are hashed: %s", plugin.settings.plan,
                    why);
        return;
    }
    plugin_info("this is rank %u of plan %s for fabric %s: %u ports to listen on, %u flows",
                plugin.plan.rank, plugin.settings.plan, plugin.plan.fabric, plugin.plan.listens_n,
                plugin.plan.flows_n);
    begin_to_watch();
}

void plan_watch_end(void)
{
    if (watch.runs && !plugin.forked) {
        (void)eventfd_write(watch.stop, 1);
        pthread_join(watch.thread, NULL);
    }
    watch.runs = false;
    if (watch.stop >= 0)
        close(watch.stop);
    watch.stop = -1;
}
