#define _GNU_SOURCE
#include "tcp_ref.h"

#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct tcp_device devices[TCP_DEVICES_MAX];
static int devices_n;

static bool is_wanted(const struct ifaddrs *at, const char *name)
{
    if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET || !(at->ifa_flags & IFF_UP))
        return false;
    return name ? strcmp(at->ifa_name, name) == 0 : !(at->ifa_flags & IFF_LOOPBACK);
}

static void describe_device(struct tcp_device *device, const struct ifaddrs *at)
{
    char path[PATH_MAX];
    *device = (struct tcp_device){.speed_mbps = 10000};
    snprintf(device->name, sizeof(device->name), "%s", at->ifa_name);
    memcpy(&device->address, at->ifa_addr, sizeof(device->address));
    snprintf(path, sizeof(path), "/sys/class/net/%s/device", device->name);
    device->pci_path = realpath(path, NULL);
    snprintf(path, sizeof(path), "/sys/class/net/%s/speed", device->name);
    FILE *file = fopen(path, "r");
    int speed = 0;
    if (file && fscanf(file, "%d", &speed) == 1 && speed > 0)
        device->speed_mbps = speed;
    if (file)
        fclose(file);
}

enum nccl_result tcp_find_devices(void)
{
    const char *name = getenv("TCP_REF_IFNAME");
    struct ifaddrs *all;
    if (devices_n)
        return NCCL_SUCCESS;
    if (getifaddrs(&all))
        return NCCL_SYSTEM_ERROR;
    for (const struct ifaddrs *at = all; at && devices_n < TCP_DEVICES_MAX; at = at->ifa_next)
        if (is_wanted(at, name))
            describe_device(&devices[devices_n++], at);
    freeifaddrs(all);
    if (devices_n)
        return NCCL_SUCCESS;
    TCP_WARN("TCP reference: no interface %s is up with an IPv4 address; TCP_REF_IFNAME names one",
             name ? name : "but loopback");
    return NCCL_SYSTEM_ERROR;
}

const struct tcp_device *tcp_device(int device)
{
    return device >= 0 && device < devices_n ? &devices[device] : NULL;
}

enum nccl_result tcp_devices(int *count)
{
    *count = devices_n;
    return NCCL_SUCCESS;
}

__attribute__((destructor)) static void forget(void)
{
    for (int i = 0; i < devices_n; i++)
        free(devices[i].pci_path);
}
