/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Open vSwitch's kernel datapath (net/openvswitch): from a port into the datapath, through its
 * actions, out of another port. Packets pass it in both directions.
 */
#ifndef NEARPATH_STAGES_OVS_H
#define NEARPATH_STAGES_OVS_H

#include "stages_rx.h"
#include "stages_tx.h"

static __always_inline void pass_datapath(u64 pointer, u32 rx_stage, u32 tx_stage)
{
	u64 tag = address_of(pointer);
	struct packet *p = packet_slot(tag);
	struct cpu *cpu;

	if (!p || p->tag != tag)
		return;
	if (p->state == PACKET_RX && rx_stage) {
		pass_function(pointer, rx_stage);
	} else if (p->state == PACKET_TX && tx_stage) {
		cpu = this_cpu();
		if (cpu)
			transmit(cpu, pointer, tx_stage);
	}
}

PROBE_FUNCTION(ovs_vport_receive, "ovs_vport_receive")
{
	pass_datapath(ctx[1], RX_OVS_VPORT_RECEIVE, TX_OVS_VPORT_RECEIVE);
}

PROBE_FUNCTION(ovs_dp_process_packet, "ovs_dp_process_packet")
{
	pass_datapath(ctx[0], RX_OVS_DP_PROCESS_PACKET, TX_OVS_DP_PROCESS_PACKET);
}

PROBE_FUNCTION(ovs_dp_upcall, "ovs_dp_upcall")
{
	pass_datapath(ctx[1], RX_OVS_DP_UPCALL, TX_OVS_DP_UPCALL);
}

PROBE_FUNCTION(ovs_vport_send, "ovs_vport_send")
{
	pass_datapath(ctx[1], RX_OVS_VPORT_SEND, TX_OVS_VPORT_SEND);
}

PROBE_FUNCTION(internal_dev_recv, "internal_dev_recv")
{
	pass_datapath(ctx[0], RX_INTERNAL_DEV_RECV, STAGE_NONE);
}

PROBE_FUNCTION(internal_dev_xmit, "internal_dev_xmit")
{
	pass_datapath(ctx[0], STAGE_NONE, TX_INTERNAL_DEV_XMIT);
}

#endif
