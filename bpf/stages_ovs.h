/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Open vSwitch's kernel datapath (net/openvswitch): from a port into the datapath, through its actions, and out
 * of another port. Packets pass it in both directions.
 */
#ifndef NEARPATH_STAGES_OVS_H
#define NEARPATH_STAGES_OVS_H

#include "stages_rx.h"
#include "stages_tx.h"
#include "upcall.h"

/* Returns whether the packet is tracked, or would be if it were sampled. */
static __always_inline bool pass_datapath(u64 pointer, u32 rx_stage, u32 tx_stage)
{
	u64 tag = address_of(pointer);
	struct packet *p = packet_slot(tag);
	struct cpu *cpu = this_cpu();

	if (!cpu || !p || p->tag != tag)
		return false;
	if (p->state == PACKET_RX && rx_stage) {
		if (p->last_stage == RX_OVS_PACKET_CMD_EXECUTE) {
			receive_in_task(cpu, p->last_ns);
			/* Passed to the stack by user space here, not by a device. */
			give(cpu, tag, 0);
		}
		return pass_function(pointer, rx_stage);
	}
	if (p->state == PACKET_TX && tx_stage)
		return transmit(cpu, pointer, tx_stage);
	return p->state == PACKET_RX_IGNORED || p->state == PACKET_TX_IGNORED;
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
	u64 tag = address_of(ctx[1]);
	struct packet *p = packet_slot(tag);
	struct cpu *cpu = this_cpu();

	if (pass_datapath(ctx[1], RX_OVS_DP_UPCALL, TX_OVS_DP_UPCALL) && has_upcall_answers)
		begin_upcall(p, cpu, ctx[1]);
}

/*
 * User space returns a packet (OVS_PACKET_CMD_EXECUTE). The function that handles it has no sk_buff yet at its
 * entry; this one, which it calls for each packet, reads the headers of a new one.
 */
PROBE_FUNCTION(ovs_packet_cmd_execute, "ovs_flow_key_extract_userspace")
{
	struct cpu *cpu = this_cpu();

	if (cpu)
		end_upcall(cpu, ctx[2], bpf_ktime_get_ns());
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
