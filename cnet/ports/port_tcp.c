#define _GNU_SOURCE
#include "ports/port_tcp.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Waiting ---- */

static void tcp_port_release(struct harp_port *port, struct harp_arrival *arrivals, size_t count)
{
    (void)port, (void)arrivals, (void)count; /* stages move with the next receive */
}

static int tcp_port_fd(const struct harp_port *port)
{
    return ((const struct tcp_port *)port)->epoll;
}

/* News that an earlier receive has seen already makes one more turn. */
static bool tcp_port_sleep(struct harp_port *port)
{
    struct tcp_port *tcp = (struct tcp_port *)port;
    tcp_look(tcp);
    tcp->asleep = tcp->ready_n == 0 && tcp->counts.to_tell == 0;
    return tcp->asleep;
}

static uint64_t tcp_port_deadline_ns(const struct harp_port *port)
{
    const struct tcp_port *tcp = (const struct tcp_port *)port;
    uint64_t earliest_ns = tcp->counts.to_tell ? 0
                           : tcp->more_wait    ? tcp->now_ns + TCP_RETRY_ACCEPT_NS
                                               : UINT64_MAX;
    for (uint32_t i = 0; i < tcp->flows_n && tcp->counts.broken; i++) {
        const struct tcp_flow *flow = tcp->flows[i];
        if (flow && flow->state == TCP_BROKEN && !flow->accepted && flow->retry.at_ns < earliest_ns)
            earliest_ns = flow->retry.at_ns;
    }
    return earliest_ns;
}

/* ---- What is not urgent ---- */

static void tcp_port_tend(struct harp_port *port, uint64_t now_ns)
{
    struct tcp_port *tcp = (struct tcp_port *)port;
    tcp->now_ns = now_ns;
    tcp_look(tcp);
    tcp_connect_again(tcp);
}

static bool take_notice(struct tcp_port *tcp, uint32_t number, struct harp_notice *notice)
{
    struct tcp_flow *flow = tcp->flows[number];
    bool *tell = flow->notice.broken ? &flow->notice.broken : &flow->notice.gone;
    if (!*tell)
        return false;
    *notice =
        (struct harp_notice){.type = flow->notice.broken ? HARP_NOTICE_BROKEN : HARP_NOTICE_GONE,
                             .about = flow->remote,
                             .hop = (int)number,
                             .error = flow->notice.error};
    *tell = false;
    tcp->counts.to_tell--;
    return true;
}

static bool tcp_port_notice(struct harp_port *port, struct harp_notice *notice)
{
    struct tcp_port *tcp = (struct tcp_port *)port;
    for (uint32_t i = 0; i < tcp->flows_n && tcp->counts.to_tell; i++)
        if (tcp->flows[i] && take_notice(tcp, i, notice))
            return true;
    return false;
}

/* ---- Hops ---- */

static int find_flow(const struct tcp_port *tcp, const struct harp_address *to, uint16_t local)
{
    for (uint32_t i = 0; i < tcp->flows_n; i++) {
        const struct tcp_flow *flow = tcp->flows[i];
        if (flow && flow->local == local && harp_address_same(&flow->remote, to) &&
            (flow->accepted ? flow->state == TCP_OPEN : flow->hops > 0))
            return (int)i;
    }
    return -1;
}

static int connect_flow(struct tcp_port *tcp, const struct harp_address *to, uint16_t local,
                        char *why)
{
    char text[64], own[64];
    int number = tcp_flow_new(tcp), error = number;
    if (number >= 0) {
        struct tcp_flow *flow = tcp->flows[number];
        flow->remote = *to;
        flow->local = local;
        flow->own = tcp->locals[local];
        flow->hops = 1; /* whoever asks for it hears of its end */
        error = tcp_flow_connect(tcp, (uint32_t)number);
        if (error == 0)
            return number;
        tcp_flow_free(tcp, (uint32_t)number);
    }
    harp_address_format(to, text, sizeof text);
    harp_address_format(&tcp->locals[local], own, sizeof own);
    snprintf(why, HARP_WHY_BYTES, "there is no way from %s to %s: %s", own, text, strerror(-error));
    return error;
}

static int tcp_port_hop(struct harp_port *port, const struct harp_address *to, uint16_t local,
                        char *why)
{
    struct tcp_port *tcp = (struct tcp_port *)port;
    assert(local < port->locals_n);
    if (to->family != HARP_TCP || to->port == 0 ||
        harp_address_is_ipv4(to) != (tcp->nic.family == AF_INET)) {
        char text[64];
        harp_address_format(to, text, sizeof text);
        snprintf(why, HARP_WHY_BYTES, "%s cannot be reached by a tcp port over %s", text,
                 tcp->nic.family == AF_INET ? "IPv4" : "IPv6");
        return -EAFNOSUPPORT;
    }
    int number = find_flow(tcp, to, local);
    if (number < 0)
        return connect_flow(tcp, to, local, why);
    struct tcp_flow *flow = tcp->flows[number];
    tcp->counts.strangers -= flow->accepted && flow->hops == 0;
    flow->hops++;
    return number;
}

/* A flow that nobody needs any more still carries CLOSE and its answers. Frames that
 * have come may still be looked at, so it goes only with the next `tend`. */
static void tcp_port_unhop(struct harp_port *port, int hop)
{
    struct tcp_port *tcp = (struct tcp_port *)port;
    struct tcp_flow *flow = tcp->flows[hop];
    assert(flow->hops > 0);
    tcp_port_let_go(port, hop, NULL, 0);
    if (--flow->hops)
        return;
    tcp->counts.to_tell -= flow->notice.broken + flow->notice.gone;
    flow->notice.broken = flow->notice.gone = false;
    if (flow->accepted)
        tcp->counts.strangers++;
    else if (flow->state != TCP_BROKEN)
        tcp_flow_break(tcp, (uint32_t)hop, 0);
}

/* Else the kernel would go on to send up to its whole buffer, by a way that was left for others'
 * sake. */
static void tcp_port_give_up(struct harp_port *port, int hop)
{
    struct tcp_flow *flow = ((struct tcp_port *)port)->flows[hop];
    flow->given_up = flow->hops == 1;
}

static void tcp_port_set_traffic_class(struct harp_port *port, int hop, uint8_t traffic_class)
{
    struct tcp_port *tcp = (struct tcp_port *)port;
    tcp->flows[hop]->traffic_class = traffic_class & (uint8_t)~HARP_ECN_MASK;
    tcp_flow_mark(tcp, tcp->flows[hop]);
}

static int tcp_port_add_local(struct harp_port *port, uint16_t source, char *why)
{
    struct tcp_port *tcp = (struct tcp_port *)port;
    uint16_t i = port->locals_n;
    int error = i == TCP_LOCALS_MAX ? -ENOSPC : tcp_try_source(tcp, source);
    if (error) {
        snprintf(why, HARP_WHY_BYTES, "TCP source port %u cannot be had: %s", source,
                 strerror(-error));
        return error;
    }
    tcp->locals[i] = tcp->locals[0];
    tcp->locals[i].port = source;
    port->locals_n++;
    return i;
}

static const struct harp_address *tcp_port_hop_local(const struct harp_port *port, int hop)
{
    return &((const struct tcp_port *)port)->flows[hop]->own;
}

static uint32_t tcp_port_hop_payload_max(const struct harp_port *port, int hop)
{
    (void)hop;
    return port->payload_max;
}

/* ---- Open and close ---- */

static void tcp_port_close(struct harp_port *port)
{
    struct tcp_port *tcp = (struct tcp_port *)port;
    for (uint32_t i = 0; i < tcp->flows_n; i++)
        if (tcp->flows[i])
            tcp_flow_free(tcp, i);
    if (tcp->listener >= 0)
        close(tcp->listener);
    if (tcp->epoll >= 0)
        close(tcp->epoll);
    free(tcp->flows);
    free(tcp->ready);
    free(tcp->dirty);
    free(tcp->spare);
    free(tcp->nowhere);
    free(tcp);
}

static const struct harp_port_ops tcp_ops = {
    .name = "tcp",
    .receive = tcp_port_receive,
    .release = tcp_port_release,
    .room = tcp_port_room,
    .slot = tcp_port_slot,
    .gather = tcp_port_gather,
    .let_go = tcp_port_let_go,
    .flush = tcp_port_flush,
    .tend = tcp_port_tend,
    .notice = tcp_port_notice,
    .hop = tcp_port_hop,
    .unhop = tcp_port_unhop,
    .give_up = tcp_port_give_up,
    .set_traffic_class = tcp_port_set_traffic_class,
    .add_local = tcp_port_add_local,
    .hop_local = tcp_port_hop_local,
    .hop_payload_max = tcp_port_hop_payload_max,
    .fd = tcp_port_fd,
    .sleep = tcp_port_sleep,
    .deadline_ns = tcp_port_deadline_ns,
    .close = tcp_port_close,
};

/* A full frame of one chunk, as several flows have, fills one packet of the kernel's, which the
 * card cuts into segments: as many segments of the interface's MTU as 64 KiB take, less what the
 * kernel leaves for headers (sk_setup_caps of net/core/sock.c). A longer frame would cost a small
 * packet more each time. */
static uint32_t tcp_frame_bytes(const struct tcp_port *tcp)
{
    uint32_t headers = tcp->nic.family == AF_INET ? TCP_IPV4_HEADERS : TCP_IPV6_HEADERS;
    uint32_t mtu = tcp->mtu && tcp->mtu < tcp->nic.mtu ? tcp->mtu : tcp->nic.mtu;
    uint32_t mss = mtu > headers ? mtu - headers : 1;
    uint32_t packet = TCP_PACKET_MOST / mss * mss;
    uint32_t segment = packet > HARP_HEADER_BYTES ? packet - HARP_HEADER_BYTES : 0;
    segment -= segment % HARP_CHUNK_ALIGN;
    return HARP_HEADER_BYTES + (segment && segment < TCP_SEGMENT ? segment : TCP_SEGMENT);
}

static int open_parts(struct tcp_port *tcp, const struct harp_port_config *config, char *why)
{
    struct harp_address local = {0};
    int error = harp_interface_find(&tcp->nic, "tcp", config, &local, why);
    if (error)
        return error;
    tcp->mtu = config->mtu;
    tcp->spare = malloc(TCP_OUT_BYTES);
    tcp->nowhere = malloc(TCP_PAYLOAD_MOST);
    if (!tcp->spare || !tcp->nowhere)
        return snprintf(why, HARP_WHY_BYTES, "no memory for a tcp port's buffers"), -ENOMEM;
    error = tcp_listen_at(tcp, &local, why);
    for (uint16_t i = 1; i < config->locals; i++) {
        tcp->locals[i] = tcp->locals[0];
        tcp->locals[i].port = 0;
    }
    return error;
}

int harp_port_tcp_open(struct harp_port **port, const struct harp_port_config *config, char *why)
{
    char own[64];
    if (config->locals < 1 || config->locals > TCP_LOCALS_MAX) {
        snprintf(why, HARP_WHY_BYTES, "a tcp port has 1 to %u own addresses, not %u",
                 TCP_LOCALS_MAX, config->locals);
        return -EINVAL;
    }
    struct tcp_port *tcp = calloc(1, sizeof *tcp);
    if (!tcp) {
        snprintf(why, HARP_WHY_BYTES, "no memory for a tcp port");
        return -ENOMEM;
    }
    tcp->epoll = tcp->listener = -1;
    tcp->owner = getpid();
    tcp->placing = config->placing;
    int error = open_parts(tcp, config, why);
    if (error) {
        tcp_port_close(&tcp->port);
        return error;
    }
    tcp->port.ops = &tcp_ops;
    tcp->port.locals = tcp->locals;
    tcp->port.locals_n = config->locals;
    tcp->port.payload_max = tcp_frame_bytes(tcp);
    tcp->port.offloads_sums = tcp->nic.offloads_sums;
    tcp->port.holds_back = tcp->port.calls_kernel = true;
    harp_address_format(&tcp->locals[0], own, sizeof own);
    snprintf(tcp->port.line, sizeof tcp->port.line, "%s %s, MTU %u", own, tcp->nic.name,
             tcp->nic.mtu);
    *port = &tcp->port;
    return 0;
}
