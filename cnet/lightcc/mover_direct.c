#include "mover_state.h"

#include <string.h>

/* Says whether the ring has all of it. */
static bool write_piece(struct harp_mover *mover, struct open_piece *open)
{
    const struct harp_piece *piece = open->piece;
    if (piece->inline_descriptor)
        return direct_write_described(mover->direct, piece->peer, open->run->work->said,
                                      said_bytes_of(open), piece->at, piece->bytes);
    return direct_write(mover->direct, piece->peer, piece->at, piece->bytes, &open->done);
}

bool mover_send_direct(struct harp_mover *mover, struct open_piece *open)
{
    uint32_t peer = open->piece->peer, before = open->done;
    if (write_piece(mover, open)) {
        mover_close_piece(mover, open);
        return true;
    }
    if (mover->peers[peer].ended && !direct_lives(mover->direct, peer))
        mover_fail(mover, HARP_MOVE_GONE, peer);
    return open->done != before;
}

/* Whether a record is the next part of the piece; else all has failed. A description is looked at
 * before what it carries may be touched. */
static bool check_record(struct harp_mover *mover, struct open_piece *open,
                         const struct direct_record *record)
{
    const struct harp_piece *piece = open->piece;
    if (piece->inline_descriptor && open->progress == PIECE_WAITS)
        return mover_check_descriptor(mover, open, record->at, record->bytes);
    uint32_t left = piece->bytes - open->done;
    uint32_t due = left < DIRECT_RECORD_BYTES ? left : DIRECT_RECORD_BYTES;
    if (piece->inline_descriptor || (record->whole == piece->bytes && record->bytes == due))
        return true;
    mover_fail_piece(mover, open, HARP_MOVE_SIZE, record->whole);
    return false;
}

/* Put what came where it belongs, and let its peer write over it. */
static void put_record(struct harp_mover *mover, struct open_piece *open,
                       const struct direct_record *record)
{
    const struct harp_piece *piece = open->piece;
    uint32_t said_bytes = said_bytes_of(open), bytes = record->bytes - said_bytes;
    mover_put(mover, open, record->at + said_bytes, bytes);
    open->done += bytes;
    direct_drop(mover->direct, piece->peer);
}

bool mover_receive_direct(struct harp_mover *mover, struct open_piece *open)
{
    const struct harp_piece *piece = open->piece;
    const struct direct_record *record;
    bool moved = false;
    if (open->run->descriptors_due && !piece->inline_descriptor)
        return false;
    while ((record = direct_first(mover->direct, piece->peer))) {
        if (!check_record(mover, open, record))
            return true;
        if (open_piece_waits(open))
            return moved;
        put_record(mover, open, record);
        moved = true;
        if (open->done < piece->bytes)
            continue;
        mover_close_piece(mover, open);
        break;
    }
    return moved;
}
