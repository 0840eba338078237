/* A capture of one link: every frame as it begins to leave, for Wireshark and tshark.
 *
 * Nanosecond pcap of Ethernet (draft-ietf-opsawg-pcap). Payload is zeros, for which CRC and tag are
 * made under a key of zeros; sessions here exchange headers and no keys. A congestion mark is the
 * CE of RFC 3168.
 */
#include <stdio.h>

#include "base/sequence.h"
#include "wire/seal.h"
#include "world.h"

#define PCAP_NANOSECONDS 0xa1b23c4d
#define LINKTYPE_ETHERNET 1
#define ETHERNET_BYTES 14
#define IPV4_BYTES 20
#define UDP_BYTES 8
#define TCP_BYTES 32 /* with time stamps (RFC 7323) */
#define LONGEST (1 << 17)

static void put_16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void put_32(uint8_t *at, uint32_t value)
{
    put_16(at, value >> 16);
    put_16(at + 2, value & 0xffff);
}

int32_t packet_capture(packet_world *w, int32_t link, const char *path, uint64_t most_bytes)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return -1;
    const uint32_t head[6] = {PCAP_NANOSECONDS, 2 | 4 << 16, 0, 0, LONGEST, LINKTYPE_ETHERNET};
    w->capture = (struct capture){.file = file, .link = (uint32_t)link, .left = most_bytes};
    return fwrite(head, sizeof head, 1, file) == 1 ? 0 : -1;
}

int32_t packet_end_capture(packet_world *w)
{
    FILE *file = w->capture.file;
    bool cut = w->capture.cut, failed = file && ferror(file);
    if (file && fclose(file))
        failed = true;
    w->capture = (struct capture){.file = NULL};
    return failed ? -1 : cut;
}

void packet_name_path(packet_world *w, int32_t channel, int32_t path, uint32_t from_ip,
                      uint32_t to_ip, uint16_t from_port, uint16_t to_port)
{
    struct end *ends = &w->hosts.ends[2 * w->channels.all[channel].connection];
    for (int side = 0; side < 2; side++)
        if (!ends[side].names)
            ends[side].names = zeroed_array(ends[side].paths, sizeof *ends[side].names);
    ends[0].names[path] = (struct path_name){from_ip, to_ip, from_port, to_port};
    ends[1].names[path] = (struct path_name){to_ip, from_ip, to_port, from_port};
}

/* The Internet checksum (RFC 1071). */
static uint32_t sum_words(const uint8_t *at, uint32_t bytes, uint32_t sum)
{
    for (uint32_t i = 0; i < bytes; i += 2)
        sum += (uint32_t)at[i] << 8 | at[i + 1];
    return sum;
}

static uint16_t fold_checksum(uint32_t sum)
{
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~(sum + (sum >> 16));
}

/* Ethernet and IPv4 headers before `bytes` of UDP or TCP. */
static void write_ip(uint8_t *at, const struct path_name *name, uint8_t protocol, uint32_t bytes,
                     uint8_t ecn)
{
    memset(at, 0, ETHERNET_BYTES + IPV4_BYTES);
    at[0] = at[6] = 2; /* locally administered; the rest is the IP address */
    put_32(at + 2, name->to_ip);
    put_32(at + 8, name->from_ip);
    put_16(at + 12, 0x0800);
    uint8_t *ip = at + ETHERNET_BYTES;
    ip[0] = 0x45;
    ip[1] = ecn;
    put_16(ip + 2, IPV4_BYTES + bytes);
    ip[8] = 64;
    ip[9] = protocol;
    put_32(ip + 12, name->from_ip);
    put_32(ip + 16, name->to_ip);
    put_16(ip + 10, fold_checksum(sum_words(ip, IPV4_BYTES, 0)));
}

/* UDP, HARP's header and its body; how many bytes. */
static uint32_t write_harp(const struct packet_world *w, const struct packet *packet,
                           const struct path_name *name, uint8_t *udp)
{
    static const struct harp_key zeros = {0, 0};
    uint8_t *header = udp + UDP_BYTES, *body = header + HARP_HEADER_BYTES;
    const uint32_t bytes = UDP_BYTES + HARP_HEADER_BYTES + packet->header.length;
    memset(udp, 0, bytes);
    put_16(udp, name->from_port);
    put_16(udp + 2, name->to_port);
    put_16(udp + 4, bytes);
    if (packet->body != NO_PACKET)
        memcpy(body, w->pool.bodies[packet->body], packet->header.length);
    harp_header_encode(&packet->header, header);
    harp_seal(&zeros, header, 0, body, packet->header.length);
    return bytes;
}

static uint32_t write_sacks(const struct tcp_segment *segment, uint8_t *at)
{
    if (!segment->sacks)
        return 0;
    at[0] = at[1] = 1; /* no operation */
    at[2] = 5;
    at[3] = (uint8_t)(2 + 8 * segment->sacks);
    for (uint32_t i = 0; i < 2u * segment->sacks; i++)
        put_32(at + 4 + 4 * i, (uint32_t)segment->seq + 1 + segment->sack[i / 2][i % 2]);
    return 4 + 8u * segment->sacks;
}

/* TCP's header and payload; how many bytes. Numbers begin at 1 behind a SYN of 0. A window is
 * announced in units of 2^7, as the receive buffer's needs. */
static uint32_t write_tcp(const struct packet_world *w, const struct packet *packet,
                          const struct path_name *name, uint8_t *tcp)
{
    const struct tcp_segment *segment = &packet->tcp;
    const bool syn = segment->kind == TCP_SYN || segment->kind == TCP_SYN_ACK;
    const bool from_sender = segment->kind == TCP_SYN || segment->kind == TCP_DATA;
    memset(tcp, 0, TCP_BYTES + 4 + 8 * TCP_SACKS + packet->payload);
    uint32_t header = TCP_BYTES + write_sacks(segment, tcp + TCP_BYTES), bytes = header;
    bytes += packet->payload;
    put_16(tcp, name->from_port);
    put_16(tcp + 2, name->to_port);
    put_32(tcp + 4, from_sender ? (uint32_t)segment->seq + !syn : !syn);
    put_32(tcp + 8, from_sender ? !syn : (uint32_t)segment->seq + 1);
    tcp[12] = (uint8_t)(header / 4 << 4);
    tcp[13] =
        (uint8_t)((syn ? 2 : 0) | (segment->kind == TCP_SYN ? 0 : 16) | (segment->echo ? 64 : 0));
    put_16(tcp + 14, from_sender ? 0xffff : segment->window >> (syn ? 6 : 7));
    tcp[20] = tcp[21] = 1;
    tcp[22] = 8; /* time stamps */
    tcp[23] = 10;
    put_32(tcp + 24, (uint32_t)(w->now_ns / 1000000));
    const uint32_t pseudo = (name->from_ip >> 16) + (name->from_ip & 0xffff) + (name->to_ip >> 16) +
                            (name->to_ip & 0xffff) + TCP_PROTOCOL + bytes;
    put_16(tcp + 16, fold_checksum(sum_words(tcp, header, pseudo)));
    return bytes;
}

void capture_packet(struct packet_world *w, const struct packet *packet)
{
    static const struct path_name nobody = {0x0a000001, 0x0a000002, 4791, 4791};
    static uint8_t frame[LONGEST];
    const struct end *from = &w->hosts.ends[packet->end ^ 1];
    const struct path_name *name = from->names ? &from->names[packet->path] : &nobody;
    const uint32_t before = ETHERNET_BYTES + IPV4_BYTES;
    if (w->capture.left < packet->bytes || packet->bytes > LONGEST / 2) {
        w->capture.cut = true;
        return;
    }
    uint8_t protocol = from->ops->protocol, ecn = packet->marked ? 3 : packet->can_mark ? 2 : 0;
    uint32_t bytes = protocol == TCP_PROTOCOL ? write_tcp(w, packet, name, frame + before)
                                              : write_harp(w, packet, name, frame + before);
    write_ip(frame, name, protocol, bytes, ecn);
    bytes += before;
    w->capture.left -= bytes;
    const uint32_t record[4] = {(uint32_t)(w->now_ns / 1000000000),
                                (uint32_t)(w->now_ns % 1000000000), bytes, bytes};
    if (fwrite(record, sizeof record, 1, w->capture.file) == 1)
        fwrite(frame, bytes, 1, w->capture.file);
}
