#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "ports/xdp_port.h"

enum {
    EVENT_NETLINK = XDP_EVENT_SOCKET + 1,
    EVENT_SHARE,
    CHANGES_AT_ONCE = 64,
    FILL_MAX = 4096,
    FILL_COPY = 512, /* the kernel copies into one after the other: 2 MiB stay in a core's cache */
    FILL_MIN = XDP_BATCH,
    TEND_NS = 10 * 1000 * 1000,
    STARVED_NS = 50 * 1000, /* a card says that it has sent in its own time, and wakes nobody */
    ETHERNET_TAGGED = ETHERNET_BYTES + VLAN_TAG_BYTES,
};

/* The link is another than it was, or gone. Then routes through it are gone, too, and what is sent
 * goes where the kernel sends it, if anywhere. */
static void change_link(struct harp_xdp *xdp, const struct harp_link *link)
{
    if (link && link->index == xdp->link.index)
        xdp->link = *link;
    else if (link)
        xdp->link.up = false;
    xdp->send.pause_ns = 0;
    harp_xdp_hops_change(xdp);
}

static void look_at_changes(struct harp_xdp *xdp)
{
    struct harp_change change;
    for (int i = 0; i < CHANGES_AT_ONCE && harp_netlink_change(&xdp->netlink, &change); i++) {
        bool here = change.interface == xdp->link.index;
        if (change.type == HARP_CHANGE_NEIGHBOUR && here)
            harp_xdp_hops_neighbour(xdp, &change);
        else if (change.type == HARP_CHANGE_LINK && here)
            change_link(xdp, &change.link);
        else if (change.type == HARP_CHANGE_ROUTE || change.type == HARP_CHANGE_LOST)
            harp_xdp_hops_change(xdp);
    }
    xdp->tended_ns = 0;
}

/* See what kernel sockets, links, routes and neighbours have to say. One system call if nothing. */
static void look_at_events(struct harp_xdp *xdp)
{
    struct epoll_event events[XDP_EVENTS];
    int count = epoll_wait(xdp->epoll, events, XDP_EVENTS, 0);
    for (int i = 0; i < count; i++) {
        uint32_t what = events[i].data.u32;
        if (what == EVENT_NETLINK) {
            look_at_changes(xdp);
        } else if (what == EVENT_SHARE) {
            harp_xdp_nic_share(&xdp->nic);
        } else if (what == XDP_EVENT_SOCKET) {
            int error;
            socklen_t bytes = sizeof error;
            if (events[i].events & EPOLLERR &&
                getsockopt(xdp->socket.fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0)
                change_link(xdp, NULL);
        } else {
            if (events[i].events & EPOLLERR)
                harp_xdp_kernel_errors(xdp, what);
            if (events[i].events & EPOLLIN)
                harp_xdp_kernel_ready(xdp, what);
        }
    }
}

static void xdp_tend(struct harp_port *port, uint64_t now_ns)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    xdp->now_ns = now_ns;
    harp_icmp_tend(&xdp->icmp, xdp->kernel.sockets, port->locals_n, now_ns);
    look_at_events(xdp);
    /* Not every driver looks once more after it has asked to be woken. */
    if (harp_ring_room(&xdp->socket.tx, xdp->socket.tx.count) < xdp->socket.tx.count)
        xdp->send.unsent = true;
    if (now_ns - xdp->tended_ns < TEND_NS)
        return;
    if (harp_xdp_hops_tend(xdp))
        xdp->tended_ns = now_ns;
}

static bool xdp_notice(struct harp_port *port, struct harp_notice *notice)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    if (xdp->notices.n == 0)
        return false;
    *notice = xdp->notices.ring[xdp->notices.first];
    xdp->notices.first = (xdp->notices.first + 1) % XDP_NOTICES;
    xdp->notices.n--;
    return true;
}

static int xdp_fd(const struct harp_port *port)
{
    return harp_xdp_of(port)->epoll;
}

/* Whether epoll watches the socket. It does so only while a thread sleeps: a watcher costs
 * the kernel two locks a packet, each way. */
static void listen_to_socket(struct harp_xdp *xdp, bool on)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = XDP_EVENT_SOCKET};
    if (xdp->slept != on)
        epoll_ctl(xdp->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, xdp->socket.fd, &event);
    xdp->slept = on;
}

/* The first turn after a sleep; `in_vain` if nothing was in the ring. */
static void end_sleep(struct harp_xdp *xdp, bool in_vain)
{
    if (xdp->slept && in_vain)
        look_at_events(xdp);
    listen_to_socket(xdp, false);
}

/* Datagrams in the ring, then those at the kernel's sockets. */
static size_t xdp_receive(struct harp_port *port, uint64_t now_ns, struct harp_arrival *arrivals,
                          size_t room)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    xdp->now_ns = now_ns;
    room = room < XDP_ARRIVALS ? room : XDP_ARRIVALS;
    size_t made = harp_xdp_receive_ring(xdp, arrivals, room);
    if (xdp->slept)
        end_sleep(xdp, made == 0);
    bool strays = xdp->kernel.ready_n > 0 || harp_gro_any(&xdp->kernel.strays) ||
                  now_ns < xdp->kernel.strays_until_ns;
    if (strays && made < room)
        made += harp_xdp_kernel_receive(xdp, arrivals + made, room - made);
    return made;
}

static bool xdp_sleep(struct harp_port *port)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    harp_xdp_refill(xdp);
    if (harp_xdp_reap(xdp) || harp_ring_ready(&xdp->socket.rx) > 0 || xdp->kernel.ready_n > 0 ||
        harp_gro_any(&xdp->kernel.strays))
        return false;
    if (xdp->send.unsent)
        harp_xdp_kick(xdp);
    if (xdp->send.unsent && xdp->send.pause_ns == 0)
        return false;
    harp_xdp_socket_wake(&xdp->socket, &port->counters.receive_calls);
    listen_to_socket(xdp, true);
    return true;
}

static uint64_t xdp_deadline_ns(const struct harp_port *port)
{
    const struct harp_xdp *xdp = harp_xdp_of(port);
    bool starved = xdp->send.slots_free_n < XDP_BATCH ||
                   xdp->send.outstanding + XDP_BATCH > xdp->send.outstanding_most;
    if (xdp->send.pause_ns)
        return xdp->send.unsent ? xdp->send.resume_ns : UINT64_MAX;
    return starved ? xdp->now_ns + STARVED_NS : UINT64_MAX;
}

/* The kernel has let go of all frames: give them back. */
static void give_back(struct harp_xdp *xdp)
{
    for (uint32_t i = 0; xdp->holds && i < xdp->frames->count; i++) {
        enum harp_frame_state state = xdp->frames->state[i];
        if (xdp->holds[i] == XDP_FILL)
            harp_frames_move(xdp->frames, i, HARP_FRAME_FILL, HARP_FRAME_FREE);
        else if (xdp->holds[i] == XDP_SENT)
            harp_frames_move(xdp->frames, i, state,
                             state == HARP_FRAME_SENDING ? HARP_FRAME_KEPT : HARP_FRAME_FREE);
        else if (xdp->holds[i] == XDP_SLOT)
            harp_frames_move(xdp->frames, i, HARP_FRAME_DRAFT, HARP_FRAME_FREE);
    }
}

static void xdp_close(struct harp_port *port)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    bool mine = xdp->owner == getpid();
    for (uint32_t i = 0; mine && i < port->locals_n; i++)
        harp_xdp_nic_unsteer(&xdp->nic, &xdp->locals[i]);
    harp_xdp_socket_close(&xdp->socket, mine);
    if (mine)
        give_back(xdp);
    harp_xdp_kernel_close(xdp);
    harp_xdp_nic_leave(&xdp->nic);
    harp_netlink_close(&xdp->netlink);
    if (xdp->epoll >= 0)
        close(xdp->epoll);
    free(xdp->holds);
    free(xdp->send.slots_free);
    free(xdp->send.pending);
    free(xdp->hops);
    free(xdp->locals);
    free(xdp->local_of);
    free(xdp);
}

static const struct harp_port_ops xdp_ops = {
    .name = "xdp",
    .receive = xdp_receive,
    .release = harp_xdp_release,
    .room = harp_xdp_room,
    .slot = harp_xdp_slot,
    .lengthen = harp_xdp_lengthen,
    .send_frame = harp_xdp_send_frame,
    .flush = harp_xdp_flush,
    .tend = xdp_tend,
    .notice = xdp_notice,
    .hop = harp_xdp_hop_make,
    .unhop = harp_xdp_hop_drop,
    .set_traffic_class = harp_xdp_hop_set_traffic_class,
    .add_local = harp_xdp_add_local,
    .hop_payload_max = harp_xdp_hop_payload_max,
    .fd = xdp_fd,
    .sleep = xdp_sleep,
    .deadline_ns = xdp_deadline_ns,
    .close = xdp_close,
};

static int watch_descriptor(struct harp_xdp *xdp, int fd, uint32_t what)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = what};
    return epoll_ctl(xdp->epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

/* The interface, and the address that the port has there. */
static int find_interface(struct harp_xdp *xdp, struct harp_port_config *config, char *why)
{
    struct harp_link *link = &xdp->link;
    int error = harp_netlink_open(&xdp->netlink);
    if (error < 0) {
        snprintf(why, HARP_WHY_BYTES, "the kernel's routing tables cannot be asked: %s",
                 strerror(-error));
        return error;
    }
    error = harp_netlink_link(&xdp->netlink, config->interface, 0, link);
    if (error < 0)
        snprintf(why, HARP_WHY_BYTES, "there is no interface %.15s: %s", config->interface,
                 strerror(-error));
    else if (!link->ethernet)
        snprintf(why, HARP_WHY_BYTES, "%s is not an Ethernet interface: use port udp", link->name),
            error = -EOPNOTSUPP;
    else if (!link->up)
        snprintf(why, HARP_WHY_BYTES, "%s is down: ip link set %s up", link->name, link->name),
            error = -ENETDOWN;
    if (error < 0 || config->local.family != 0)
        return error;
    error = harp_netlink_address(&xdp->netlink, link->index, &config->local);
    if (error < 0)
        snprintf(why, HARP_WHY_BYTES, "%s has no address that others can reach: ip address add",
                 link->name);
    return error;
}

static uint32_t power_of_two(uint32_t least)
{
    uint32_t power = 1;
    while (power < least)
        power *= 2;
    return power;
}

/* How the pool's frames are shared out, and how much fits into a datagram: a frame at most, since
 * drivers of clouds have no zero copy for packets of several. */
static int share_out(struct harp_xdp *xdp, const struct harp_port_config *config,
                     struct harp_xdp_socket_config *socket, uint32_t *slots, char *why)
{
    const struct harp_frames *frames = config->frames;
    bool v4 = harp_address_is_ipv4(&config->local);
    uint32_t mtu = config->mtu && config->mtu < xdp->link.mtu ? config->mtu : xdp->link.mtu;
    uint32_t headers = v4 ? IP4_UDP_BYTES : IP6_UDP_BYTES;
    uint32_t payload = mtu > headers ? mtu - headers : 0;
    uint32_t single =
        frames->frame_bytes - HARP_XDP_KERNEL_ROOM - HARP_XDP_HEADROOM - ETHERNET_TAGGED - headers;
    uint32_t free = frames->in_state[HARP_FRAME_FREE];
    uint32_t most = config->frames_max ? config->frames_max : free / 2;
    xdp->fill.most = most < FILL_MAX ? most : FILL_MAX;
    xdp->port.payload_max = payload < single ? payload : single;
    *slots = free > xdp->fill.most ? (free - xdp->fill.most) / 2 : 0;
    if (*slots > XDP_SLOTS_MAX)
        *slots = XDP_SLOTS_MAX;
    if (xdp->fill.most < FILL_MIN || *slots < XDP_BATCH) {
        snprintf(why, HARP_WHY_BYTES,
                 "the xdp port needs %d frames to receive into and twice %d free besides; the pool "
                 "has %u free, and %u may be used to receive",
                 FILL_MIN, XDP_BATCH, free, xdp->fill.most);
        return -ENOBUFS;
    }
    *socket = (struct harp_xdp_socket_config){.interface = xdp->link.index,
                                              .queues = xdp->link.queues,
                                              .queue = config->queue,
                                              .copy_only = config->copy_only,
                                              .zero_copy_only = config->zero_copy_only,
                                              .busy_poll_us = config->busy_poll_us,
                                              .fill = power_of_two(2 * xdp->fill.most),
                                              .rx = power_of_two(xdp->fill.most),
                                              .tx = power_of_two(4 * *slots),
                                              .frames = frames,
                                              .name = xdp->link.name,
                                              .mtu = xdp->link.mtu};
    return 0;
}

static void write_line(struct harp_xdp *xdp, bool copy_only)
{
    const struct harp_xdp_socket *socket = &xdp->socket;
    uint32_t mtu_most = harp_xdp_zero_copy_mtu(xdp->frames->frame_bytes);
    char why[64] = "";
    if (!socket->zero_copy && copy_only)
        snprintf(why, sizeof why, " (as it was asked for)");
    else if (socket->not_zero_copy == -EINVAL && xdp->link.mtu > mtu_most)
        snprintf(why, sizeof why, " (zero copy: the kernel wants an MTU of at most %u)", mtu_most);
    else if (!socket->zero_copy)
        snprintf(why, sizeof why, " (zero copy: %s)", strerror(-socket->not_zero_copy));
    snprintf(xdp->port.line, sizeof xdp->port.line, "xdp: %s queue %u%s, %s%s%s", xdp->link.name,
             socket->queue, xdp->nic.first ? "" : " (shared)",
             socket->zero_copy ? "zero copy" : "copy mode", why,
             socket->busy_poll ? ", busy polling" : "");
}

static int allocate_port(struct harp_xdp *xdp, const struct harp_port_config *config, char *why)
{
    uint32_t frames = config->frames->count;
    xdp->locals = calloc(XDP_LOCALS_MAX, sizeof *xdp->locals);
    xdp->local_of = calloc(1 << 16, sizeof *xdp->local_of);
    xdp->holds = calloc(frames, sizeof *xdp->holds);
    xdp->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!xdp->locals || !xdp->local_of || !xdp->holds || xdp->epoll < 0) {
        snprintf(why, HARP_WHY_BYTES, "no memory for an xdp port");
        return -ENOMEM;
    }
    xdp->port.locals = xdp->locals;
    return 0;
}

static int steer_locals(struct harp_xdp *xdp, char *why)
{
    int error = harp_xdp_nic_claim(&xdp->nic, xdp->socket.queue, xdp->socket.fd);
    for (uint32_t i = 0; i < xdp->port.locals_n && error == 0; i++)
        error = harp_xdp_nic_steer(&xdp->nic, &xdp->locals[i], xdp->socket.queue);
    if (error < 0)
        snprintf(why, HARP_WHY_BYTES, "queue %u of %s cannot be steered to: %s", xdp->socket.queue,
                 xdp->link.name, strerror(-error));
    return error;
}

static int open_all(struct harp_xdp *xdp, struct harp_port_config *config, char *why)
{
    struct harp_xdp_socket_config socket;
    uint32_t slots = 0;
    int error = find_interface(xdp, config, why);
    if (error == 0)
        error = share_out(xdp, config, &socket, &slots, why);
    if (error == 0)
        error = allocate_port(xdp, config, why);
    if (error == 0)
        error = harp_xdp_kernel_open(xdp, config, why);
    if (error == 0)
        error = harp_xdp_nic_join(&xdp->nic, &xdp->netlink, &xdp->link, why);
    if (error == 0)
        error = harp_xdp_socket_open(&xdp->socket, &socket, why);
    if (error < 0)
        return error;
    if (!xdp->socket.zero_copy && !config->frames_max && xdp->fill.most > FILL_COPY)
        xdp->fill.most = FILL_COPY;
    xdp->send.outstanding_most = xdp->socket.tx.count / 2;
    error = harp_xdp_send_open(xdp, slots);
    if (error < 0)
        snprintf(why, HARP_WHY_BYTES, "the frame pool has too few frames for the xdp port");
    harp_xdp_refill(xdp);
    if (error == 0)
        error = steer_locals(xdp, why);
    if (error == 0)
        error = watch_descriptor(xdp, xdp->netlink.monitor, EVENT_NETLINK);
    if (error == 0 && xdp->nic.listener >= 0)
        error = watch_descriptor(xdp, xdp->nic.listener, EVENT_SHARE);
    return error;
}

int harp_port_xdp_open(struct harp_port **port, const struct harp_port_config *config, char *why)
{
    struct harp_port_config own = *config;
    const struct harp_frames *frames = config->frames;
    if (!config->interface || config->locals == 0 || config->locals > XDP_LOCALS_MAX || !frames ||
        (frames->frame_bytes != 2048 && frames->frame_bytes != 4096)) {
        snprintf(why, HARP_WHY_BYTES,
                 "the xdp port needs an interface, 1 to %d local addresses, and a pool of frames "
                 "of 2048 or 4096 bytes",
                 XDP_LOCALS_MAX);
        return -EINVAL;
    }
    struct harp_xdp *xdp = calloc(1, sizeof *xdp);
    if (!xdp) {
        snprintf(why, HARP_WHY_BYTES, "no memory for an xdp port");
        return -ENOMEM;
    }
    xdp->port.ops = &xdp_ops;
    xdp->port.headroom = XDP_HEADERS_MAX;
    xdp->frames = config->frames;
    xdp->owner = getpid();
    xdp->epoll = xdp->netlink.request = xdp->netlink.monitor = -1;
    xdp->nic = (struct harp_xdp_nic){.link = -1, .listener = -1, .program = {-1, -1, -1}};
    xdp->socket.fd = -1;
    snprintf(why, HARP_WHY_BYTES, "the xdp port cannot be opened: no memory");
    int error = open_all(xdp, &own, why);
    if (error < 0) {
        xdp_close(&xdp->port);
        return error;
    }
    write_line(xdp, config->copy_only);
    *port = &xdp->port;
    return 0;
}
