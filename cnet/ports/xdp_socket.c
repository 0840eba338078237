#define _GNU_SOURCE
#include "ports/xdp_socket.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ports/port.h"

/* Newer than some headers that this is compiled with; a kernel that does not know them says so. */
enum {
    MAX_TX_BUDGET = 9, /* XDP_MAX_TX_SKB_BUDGET, 6.17: packets sent a call in copy mode */
};

enum {
    TRIES = 100, /* a queue whose owner has just closed stays busy for some milliseconds */
    PAUSE_NS = 10 * 1000 * 1000,
    SEND_BUFFER_BYTES = 64 << 20, /* copy mode charges each packet to the socket until it is gone */
    CALLS_MAX = 1024,
    BUSY_POLL_BUDGET = 64,
};

/* mlx5 had rings of its own for zero copy until all took the queues' numbers ("net/mlx5e: xsk: Use
 * queue indices starting from 0 for XSK queues", 2022): on a card of N queues they were N to 2N-1,
 * which the card's hash does not lead to, so that only a rule would bring anything there. From
 * memory of that commit; https://github.com/xdp-project/xdp-tutorial/issues/232 shows the EINVAL.
 */
#define MLX5_QUEUES "; mlx5 has it from Linux 6.2 on for queues that its hash leads to"

static int map_ring(struct harp_ring *ring, int fd, const struct xdp_ring_offset *at, uint64_t page,
                    uint32_t count, size_t entry_bytes)
{
    ring->map_bytes = at->desc + count * entry_bytes;
    ring->map = mmap(NULL, ring->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                     (off_t)page);
    if (ring->map == MAP_FAILED) {
        ring->map = NULL;
        return -errno;
    }
    /* A child's mapping would keep the queue after the parent has closed it. */
    (void)madvise(ring->map, ring->map_bytes, MADV_DONTFORK);
    uint8_t *base = ring->map;
    ring->producer = (uint32_t *)(base + at->producer);
    ring->consumer = (uint32_t *)(base + at->consumer);
    ring->flags = (uint32_t *)(base + at->flags);
    ring->entries = base + at->desc;
    ring->count = count;
    return 0;
}

static int map_rings(struct harp_xdp_socket *xsk, const struct harp_xdp_socket_config *config)
{
    struct xdp_mmap_offsets at;
    socklen_t bytes = sizeof at;
    int error = getsockopt(xsk->fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &bytes) < 0 ? -errno : 0;
    if (error == 0)
        error = map_ring(&xsk->fill, xsk->fd, &at.fr, XDP_UMEM_PGOFF_FILL_RING, config->fill,
                         sizeof(uint64_t));
    if (error == 0)
        error = map_ring(&xsk->completion, xsk->fd, &at.cr, XDP_UMEM_PGOFF_COMPLETION_RING,
                         config->tx, sizeof(uint64_t));
    if (error == 0)
        error = map_ring(&xsk->rx, xsk->fd, &at.rx, XDP_PGOFF_RX_RING, config->rx,
                         sizeof(struct xdp_desc));
    if (error == 0)
        error = map_ring(&xsk->tx, xsk->fd, &at.tx, XDP_PGOFF_TX_RING, config->tx,
                         sizeof(struct xdp_desc));
    return error;
}

/* Register memory and rings with the kernel; what failed is in `why`. */
static int set_up(struct harp_xdp_socket *xsk, const struct harp_xdp_socket_config *config,
                  char *why)
{
    const struct harp_frames *frames = config->frames;
    struct xdp_umem_reg memory = {.addr = (uint64_t)(uintptr_t)frames->base,
                                  .len = (uint64_t)frames->count * frames->frame_bytes,
                                  .chunk_size = frames->frame_bytes,
                                  .headroom = HARP_XDP_HEADROOM};
    uint32_t fill = config->fill, rx = config->rx, tx = config->tx;
    const struct {
        int option;
        const void *value;
        socklen_t bytes;
        const char *what;
    } steps[] = {
        {XDP_UMEM_REG, &memory, sizeof memory, "register its memory"},
        {XDP_UMEM_FILL_RING, &fill, sizeof fill, "make a fill ring"},
        {XDP_UMEM_COMPLETION_RING, &tx, sizeof tx, "make a completion ring"},
        {XDP_RX_RING, &rx, sizeof rx, "make a receive ring"},
        {XDP_TX_RING, &tx, sizeof tx, "make a transmit ring"},
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (setsockopt(xsk->fd, SOL_XDP, steps[i].option, steps[i].value, steps[i].bytes) == 0)
            continue;
        int error = errno;
        snprintf(why, HARP_WHY_BYTES, "an AF_XDP socket cannot %s (%s)%s", steps[i].what,
                 strerror(error),
                 error == ENOBUFS ? ": give CAP_IPC_LOCK or raise the limit of locked memory" : "");
        return -error;
    }
    int error = map_rings(xsk, config);
    if (error < 0)
        snprintf(why, HARP_WHY_BYTES, "an AF_XDP socket's rings cannot be mapped: %s",
                 strerror(-error));
    return error;
}

/* Bind to a queue, without a copy if that can be. */
static int bind_queue(struct harp_xdp_socket *xsk, const struct harp_xdp_socket_config *config,
                      uint32_t queue)
{
    struct sockaddr_xdp to = {
        .sxdp_family = AF_XDP, .sxdp_ifindex = config->interface, .sxdp_queue_id = queue};
    xsk->queue = queue;
    for (int copy = config->copy_only; copy <= !config->zero_copy_only; copy++) {
        to.sxdp_flags = (uint16_t)(XDP_USE_NEED_WAKEUP | (copy ? XDP_COPY : XDP_ZEROCOPY));
        if (bind(xsk->fd, (struct sockaddr *)&to, sizeof to) == 0) {
            xsk->zero_copy = !copy;
            return 0;
        }
        if (errno == EBUSY || errno == ENODEV || errno == ENETDOWN)
            return -errno;
        if (!copy)
            xsk->not_zero_copy = -errno;
    }
    return -errno;
}

/* Bind to the queue that is wanted, or to the first that is free. */
static int find_queue(struct harp_xdp_socket *xsk, const struct harp_xdp_socket_config *config,
                      char *why)
{
    uint32_t first = config->queue < 0 ? 0 : (uint32_t)config->queue, queue = first;
    uint32_t end = config->queue < 0 ? config->queues : first + 1;
    struct timespec pause = {.tv_nsec = PAUSE_NS};
    int error = -EBUSY;
    for (int i = 0; i < TRIES && error == -EBUSY; i++) {
        if (i > 0)
            nanosleep(&pause, NULL);
        for (queue = first; queue < end && error == -EBUSY; queue++)
            error = bind_queue(xsk, config, queue);
        /* Some of the queues that there may be are not there now. */
        if (error == -EINVAL && queue - 1 > first)
            error = -EBUSY, end = queue - 1;
    }
    if (error == 0)
        return 0;
    if (error == -EBUSY && config->queue < 0)
        snprintf(
            why, HARP_WHY_BYTES,
            "all %u queues of %s are taken by other AF_XDP sockets: give it more (ethtool -L), "
            "or run fewer processes on it",
            end, config->name);
    else if (error == -EBUSY)
        snprintf(why, HARP_WHY_BYTES,
                 "queue %u of %s is taken by another AF_XDP socket: choose another, or -1 for any",
                 first, config->name);
    else if (config->zero_copy_only && xsk->not_zero_copy == -EINVAL &&
             config->mtu > harp_xdp_zero_copy_mtu(config->frames->frame_bytes))
        snprintf(
            why, HARP_WHY_BYTES,
            "%s has an MTU of %u, and the kernel has zero copy up to %u: ip link set %s mtu %u",
            config->name, config->mtu, harp_xdp_zero_copy_mtu(config->frames->frame_bytes),
            config->name, harp_xdp_zero_copy_mtu(config->frames->frame_bytes));
    else if (config->zero_copy_only && xsk->not_zero_copy)
        snprintf(why, HARP_WHY_BYTES, "the driver of %s has no zero copy (%s)%s", config->name,
                 strerror(-error), error == -EINVAL ? MLX5_QUEUES : "");
    else
        snprintf(why, HARP_WHY_BYTES, "an AF_XDP socket cannot be bound to queue %u of %s: %s%s",
                 queue - 1, config->name, strerror(-error),
                 error == -EINVAL ? " (is there such a queue?)" : "");
    return error;
}

/* Whether the kernel can do that. */
static bool set_busy_poll(int fd, uint32_t us)
{
    int prefer = 1, time_us = (int)us, budget = BUSY_POLL_BUDGET;
    return setsockopt(fd, SOL_SOCKET, SO_PREFER_BUSY_POLL, &prefer, sizeof prefer) == 0 &&
           setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &time_us, sizeof time_us) == 0 &&
           setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL_BUDGET, &budget, sizeof budget) == 0;
}

int harp_xdp_socket_open(struct harp_xdp_socket *xsk, const struct harp_xdp_socket_config *config,
                         char *why)
{
    int bytes = SEND_BUFFER_BYTES;
    uint32_t budget = config->tx;
    assert(config->fill > 0 && (config->fill & (config->fill - 1)) == 0);
    assert(config->rx > 0 && (config->rx & (config->rx - 1)) == 0);
    assert(config->tx > 0 && (config->tx & (config->tx - 1)) == 0);
    *xsk = (struct harp_xdp_socket){.fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0),
                                    .interface = config->interface};
    if (xsk->fd < 0) {
        int error = errno;
        const char *cure = error == EPERM          ? "it needs CAP_NET_RAW"
                           : error == EACCES       ? "a security module, as SELinux, forbids it"
                           : error == EAFNOSUPPORT ? "the kernel needs CONFIG_XDP_SOCKETS"
                                                   : "the system has no more of them";
        snprintf(why, HARP_WHY_BYTES, "no AF_XDP socket can be made (%s): %s", strerror(error),
                 cure);
        return -error;
    }
    (void)setsockopt(xsk->fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    int error = set_up(xsk, config, why);
    if (error == 0)
        error = find_queue(xsk, config, why);
    if (error < 0) {
        harp_xdp_socket_close(xsk, true);
        return error;
    }
    (void)setsockopt(xsk->fd, SOL_XDP, MAX_TX_BUDGET, &budget, sizeof budget);
    xsk->busy_poll = config->busy_poll_us > 0 && set_busy_poll(xsk->fd, config->busy_poll_us);
    return 0;
}

/* A card that receives without a copy is stopped some time after its socket was closed, and
 * may write to frames until then. The queue is busy so long for others: be one. */
static void await_release(const struct harp_xdp_socket *xsk)
{
    enum { ENTRIES = 2, BYTES = 4096, WAIT_NS = 1000 * 1000, WAITS = 1000 };
    struct timespec pause = {.tv_nsec = WAIT_NS};
    uint32_t entries = ENTRIES;
    struct sockaddr_xdp to = {.sxdp_family = AF_XDP,
                              .sxdp_flags = XDP_COPY,
                              .sxdp_ifindex = xsk->interface,
                              .sxdp_queue_id = xsk->queue};
    void *page = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct xdp_umem_reg memory = {
        .addr = (uint64_t)(uintptr_t)page, .len = BYTES, .chunk_size = BYTES};
    int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
    bool ready = page != MAP_FAILED && fd >= 0 &&
                 setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &memory, sizeof memory) == 0;
    const int rings[] = {XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING};
    for (size_t i = 0; ready && i < sizeof rings / sizeof rings[0]; i++)
        ready = setsockopt(fd, SOL_XDP, rings[i], &entries, sizeof entries) == 0;
    for (int i = 0; ready && i < WAITS; i++) {
        if (bind(fd, (struct sockaddr *)&to, sizeof to) == 0 || errno != EBUSY)
            break;
        nanosleep(&pause, NULL);
    }
    if (fd >= 0)
        close(fd);
    if (page != MAP_FAILED)
        munmap(page, BYTES);
}

void harp_xdp_socket_close(struct harp_xdp_socket *xsk, bool mine)
{
    struct harp_ring *const rings[] = {&xsk->fill, &xsk->rx, &xsk->tx, &xsk->completion};
    for (size_t i = 0; i < sizeof rings / sizeof rings[0]; i++) {
        if (mine && rings[i]->map)
            munmap(rings[i]->map, rings[i]->map_bytes);
        rings[i]->map = NULL;
    }
    if (xsk->fd >= 0)
        close(xsk->fd);
    xsk->fd = -1;
    if (mine && xsk->zero_copy)
        await_release(xsk);
}

int harp_xdp_socket_send(struct harp_xdp_socket *xsk, uint64_t *calls)
{
    for (int i = 0; i < CALLS_MAX; i++) {
        /* The kernel sets the flag and then looks at the ring; here it is the other way round. */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (!harp_ring_wants_wake(&xsk->tx))
            return 0;
        uint32_t before = __atomic_load_n(xsk->tx.consumer, __ATOMIC_ACQUIRE);
        if (before == xsk->tx.mine)
            return 0;
        ssize_t sent = sendto(xsk->fd, NULL, 0, MSG_DONTWAIT, NULL, 0);
        int error = sent < 0 ? errno : 0;
        ++*calls;
        /* With zero copy the card takes descriptors when it has time. */
        if (xsk->zero_copy && error == 0)
            return 0;
        uint32_t after = __atomic_load_n(xsk->tx.consumer, __ATOMIC_ACQUIRE);
        if (after == xsk->tx.mine)
            return 0;
        if (after == before)
            return error == 0 || error == ENOBUFS || error == EBUSY ? -EAGAIN : -error;
    }
    return -EAGAIN;
}

void harp_xdp_socket_wake(struct harp_xdp_socket *xsk, uint64_t *calls)
{
    if (!xsk->busy_poll && !harp_ring_wants_wake(&xsk->fill))
        return;
    (void)recvfrom(xsk->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
    ++*calls;
}
