/* Each reason for which the system refuses an AF_XDP socket has its own cure, and one sentence. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "ports/port.h"
#include "ports/xdp_socket.h"

static int refusal;

int socket(int family, int type, int protocol)
{
    if (family == AF_XDP)
        return errno = refusal, -1;
    return (int)syscall(SYS_socket, family, type, protocol);
}

static void check_cure(int error, const char *cure)
{
    struct harp_xdp_socket made;
    struct harp_xdp_socket_config config = {.fill = 64, .rx = 64, .tx = 64};
    char why[HARP_WHY_BYTES] = "";
    refusal = error;
    CHECK(harp_xdp_socket_open(&made, &config, why) == -error, "it was opened");
    CHECK(strstr(why, strerror(error)) && strstr(why, cure), "%s", why);
}

int main(void)
{
    check_cure(EPERM, "it needs CAP_NET_RAW");
    check_cure(EACCES, "a security module, as SELinux, forbids it");
    check_cure(EAFNOSUPPORT, "the kernel needs CONFIG_XDP_SOCKETS");
    check_cure(EMFILE, "the system has no more of them");
    return 0;
}
