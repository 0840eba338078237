#define _GNU_SOURCE
#include "ports/xdp_nic.h"

#include <errno.h>
#include <linux/if_link.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "ports/bpf.h"
#include "ports/port.h"
#include "ports/xdp_handover.h"

/* Processes come and go while one looks; a link takes some milliseconds to vanish. */
enum { TRIES = 100, PAUSE_NS = 10 * 1000 * 1000, LINKS_MAX = 1 << 20 };

/* Attach a new program. -EBUSY if another process was faster. */
static int attach_program(struct harp_xdp_nic *nic, const struct harp_link *interface, char *why)
{
    uint32_t queues = interface->queues ? interface->queues : 1;
    int error = harp_xdp_program_load(&nic->program, interface->index, queues, why);
    if (error < 0)
        return error;
    nic->link = harp_bpf_attach(nic->program.program, interface->index, XDP_FLAGS_DRV_MODE);
    nic->first = true;
    if (nic->link >= 0)
        return 0;
    error = nic->link == -EEXIST ? -EBUSY : nic->link;
    harp_xdp_program_close(&nic->program);
    snprintf(why, HARP_WHY_BYTES, "no XDP program can be attached to %s: %s%s", interface->name,
             strerror(-error), error == -EOPNOTSUPP ? ": its driver has none; use tcp or udp" : "");
    return error;
}

/* Find the BPF link between an interface and its program. Returns -ENOENT if they have none.
 * Another network namespace may have the same interface index, but not the same program. */
static int find_link(uint32_t interface, uint32_t program)
{
    uint32_t id = 0;
    for (int i = 0; i < LINKS_MAX; i++) {
        int error = harp_bpf_next_id(BPF_LINK_GET_NEXT_ID, id, &id);
        if (error < 0)
            return error;
        int fd = harp_bpf_open_id(BPF_LINK_GET_FD_BY_ID, id);
        if (fd == -ENOENT || fd == -EAGAIN)
            continue; /* gone, or about to be made */
        if (fd < 0)
            return fd;
        struct bpf_link_info info = {0};
        error = harp_bpf_info(fd, &info, sizeof info);
        if (error == 0 && info.type == BPF_LINK_TYPE_XDP && info.prog_id == program &&
            info.xdp.ifindex == interface)
            return fd;
        close(fd);
    }
    return -ENOENT;
}

/* Have the descriptors handed over. -EBUSY if nobody answers yet. */
static int ask_others(struct harp_xdp_nic *nic, const struct harp_link *interface, char *why)
{
    nic->link = harp_xdp_handover_ask(interface->index, interface->xdp_program, &nic->program);
    if (nic->link == -ETIMEDOUT)
        snprintf(why, HARP_WHY_BYTES,
                 "the HARP process that shares %s does not answer: it is stopped, or nobody drives "
                 "it",
                 interface->name);
    return nic->link < 0 ? nic->link : 0;
}

/* Join those who have attached the program. -ENOENT if they are gone. */
static int adopt_program(struct harp_xdp_nic *nic, const struct harp_link *interface, char *why)
{
    int error = harp_xdp_program_find(&nic->program, interface->xdp_program, interface->name, why);
    nic->first = false;
    if (error == -EPERM || error == -EACCES)
        return ask_others(nic, interface, why);
    if (error < 0)
        return error;
    nic->link = find_link(interface->index, interface->xdp_program);
    if (nic->link >= 0)
        return 0;
    harp_xdp_program_close(&nic->program);
    snprintf(why, HARP_WHY_BYTES, "the BPF link of %s's XDP program cannot be opened: %s",
             interface->name, strerror(-nic->link));
    return nic->link;
}

int harp_xdp_nic_join(struct harp_xdp_nic *nic, struct harp_netlink *netlink,
                      const struct harp_link *interface, char *why)
{
    struct timespec pause = {.tv_nsec = PAUSE_NS};
    int error = -ENOENT;
    *nic = (struct harp_xdp_nic){.link = -1, .listener = -1, .program = {-1, -1, -1}};
    snprintf(why, HARP_WHY_BYTES,
             "%s has an XDP program whose owner comes and goes too fast to share it",
             interface->name);
    for (int i = 0; i < TRIES && (error == -ENOENT || error == -EBUSY); i++) {
        struct harp_link now;
        if (i > 0)
            nanosleep(&pause, NULL);
        error = harp_netlink_link(netlink, NULL, interface->index, &now);
        if (error < 0)
            snprintf(why, HARP_WHY_BYTES, "%s is gone: %s", interface->name, strerror(-error));
        else if (now.xdp_program)
            error = adopt_program(nic, &now, why);
        else
            error = attach_program(nic, &now, why);
    }
    if (error == 0)
        nic->listener = harp_xdp_handover_listen(interface->index);
    return error;
}

/* Remove all that leads to `queue`. */
static int forget_ports(int ports, uint32_t queue)
{
    struct harp_xdp_port_key key, next;
    const void *from = NULL;
    for (int i = 0; i < 2 * HARP_XDP_PORTS_MAX; i++) {
        uint32_t owner;
        int error = harp_bpf_map_next(ports, from, &next);
        if (error == -ENOENT)
            return 0;
        if (error < 0)
            return error;
        if (harp_bpf_map_get(ports, &next, &owner) == 0 && owner == queue) {
            /* The walk goes on from the entry before it, which is still there. */
            error = harp_bpf_map_remove(ports, &next);
            if (error < 0 && error != -ENOENT)
                return error;
            continue;
        }
        key = next;
        from = &key;
    }
    return -EAGAIN;
}

int harp_xdp_nic_claim(struct harp_xdp_nic *nic, uint32_t queue, int socket)
{
    int error = forget_ports(nic->program.ports, queue);
    return error < 0 ? error : harp_bpf_map_set(nic->program.sockets, &queue, &socket);
}

int harp_xdp_nic_steer(struct harp_xdp_nic *nic, const struct harp_address *address, uint32_t queue)
{
    struct harp_xdp_port_key key = harp_xdp_port_key(address);
    return harp_bpf_map_set(nic->program.ports, &key, &queue);
}

void harp_xdp_nic_unsteer(struct harp_xdp_nic *nic, const struct harp_address *address)
{
    struct harp_xdp_port_key key = harp_xdp_port_key(address);
    (void)harp_bpf_map_remove(nic->program.ports, &key);
}

void harp_xdp_nic_share(const struct harp_xdp_nic *nic)
{
    harp_xdp_handover_answer(nic->listener, nic->link, &nic->program);
}

void harp_xdp_nic_leave(struct harp_xdp_nic *nic)
{
    if (nic->link >= 0)
        close(nic->link);
    if (nic->listener >= 0)
        close(nic->listener);
    nic->link = nic->listener = -1;
    harp_xdp_program_close(&nic->program);
}
