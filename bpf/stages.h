/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The stages of the packet path, by number. crates/instruments/src/stages/table.rs lists the
 * same in the same order, and a test compares the two.
 *
 * Receive and transmit have numbers of their own, also where both pass the same function, so
 * that a pair of numbers is a span of one direction.
 */
#ifndef NEARPATH_STAGES_H
#define NEARPATH_STAGES_H

enum stage {
	STAGE_NONE,
	/* receive */
	RX_IRQ_HANDLER,
	RX_NET_RX_RAISE,
	RX_NET_RX_ENTRY,
	RX_NAPI_POLL,
	RX_NAPI_GRO_RECEIVE,
	RX_NETIF_RX,
	RX_GRO_CELLS_RECEIVE,
	RX_ENQUEUE_TO_BACKLOG,
	RX_PROCESS_BACKLOG,
	/* from here on a stack has it in hand */
	RX_NETIF_RECEIVE_SKB,
	RX_VLAN_DO_RECEIVE,
	RX_BOND_HANDLE_FRAME,
	RX_BR_HANDLE_FRAME,
	RX_MACVLAN_HANDLE_FRAME,
	RX_OVS_VPORT_RECEIVE,
	RX_OVS_DP_PROCESS_PACKET,
	RX_OVS_DP_UPCALL,
	RX_OVS_PACKET_CMD_EXECUTE,
	RX_OVS_VPORT_SEND,
	RX_INTERNAL_DEV_RECV,
	RX_IP_RCV,
	RX_IPV6_RCV,
	RX_TCP_V4_RCV,
	RX_TCP_V6_RCV,
	RX_UDP_RCV,
	RX_UDPV6_RCV, /* to here */
	RX_NET_DEV_QUEUE, /* forwarded */
	RX_TAP_HANDLE_FRAME,
	RX_TCP_RCV_ESTABLISHED,
	RX_SK_DATA_READY,
	RX_SCHED_WAKING,
	RX_SCHED_SWITCH,
	RX_SKB_COPY_DATAGRAM,
	RX_SOCK_RECV,
	RX_CONSUME_SKB,
	RX_KFREE_SKB,
	/* transmit */
	TX_SOCK_SEND,
	TX_TCP_SENDMSG,
	TX_TCP_TRANSMIT_SKB,
	TX_IP_QUEUE_XMIT,
	TX_INET6_CSK_XMIT,
	TX_IP_SEND_SKB,
	TX_IP6_SEND_SKB,
	TX_NET_DEV_QUEUE,
	TX_QDISC_ENQUEUE,
	TX_QDISC_DEQUEUE,
	TX_NET_DEV_START_XMIT,
	TX_INTERNAL_DEV_XMIT,
	TX_OVS_VPORT_RECEIVE,
	TX_OVS_DP_PROCESS_PACKET,
	TX_OVS_DP_UPCALL,
	TX_OVS_PACKET_CMD_EXECUTE,
	TX_OVS_VPORT_SEND,
	TX_NET_DEV_XMIT,
	TX_NETIF_RX, /* handed over to a virtual peer */
	TX_CONSUME_SKB,
	TX_KFREE_SKB,
	STAGE_COUNT,
};

/* A power of two, for the verifier. */
#define STAGES_MAX 64

#endif
