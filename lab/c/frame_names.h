/* Names of the states of a frame, as in the table of base/frames.h. */
#ifndef FRAME_NAMES_H
#define FRAME_NAMES_H

#include "base/frames.h"

static const char *const frame_names[HARP_FRAME_STATES] = {
    "FREE", "FILL", "ARRIVED", "LENT", "DRAFT", "READY", "SENDING", "LEAVING", "KEPT"};

#endif
