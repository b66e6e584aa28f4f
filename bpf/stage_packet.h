/* SPDX-License-Identifier: GPL-2.0-only */
/* A packet that the instrument "stages" tracks; the instrument "vm" looks at it when the packet reaches a tap. */
#ifndef NEARPATH_STAGE_PACKET_H
#define NEARPATH_STAGE_PACKET_H

#include "packet_slot.h"

struct packet {
	u64 tag; /* address of the sk_buff */
	u64 last_ns; /* when it passed the last stage; for an ignored packet, since when the stack has it */
	u32 last_cpu;
	u8 last_stage;
	u8 state;
	u8 datagram; /* waits in a UDP socket, from which a receive call takes it whole */
	u8 flags; /* see waits.h */
	u64 group; /* see group.h; 0: unknown */
	u64 begin_ns; /* when it passed the first stage of its path, and on which CPU */
	u32 begin_cpu;
	u8 begin_stage;
	u8 unused[19]; /* pads to a cache line */
};

#endif
