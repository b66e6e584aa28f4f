/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's types, trimmed by hand to the fields that the programs read. Fields are resolved by name when a
 * program is loaded (CO-RE), so neither their order nor their offsets matter here, and a build does not depend
 * on the kernel of the build machine.
 */
#ifndef NEARPATH_VMLINUX_H
#define NEARPATH_VMLINUX_H
#define __VMLINUX_H__ /* for bpf_tracing.h: register names as in the kernel */

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0

/* Values of the user-space API, the same on all kernels. */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_STACK_TRACE = 7,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_CPUMAP = 16,
	BPF_MAP_TYPE_REUSEPORT_SOCKARRAY = 20,
	BPF_MAP_TYPE_RINGBUF = 27,
};
#define BPF_F_MMAPABLE (1U << 10)
#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_F_FAST_STACK_CMP (1U << 9)
#define BPF_RB_NO_WAKEUP 1
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define AF_NETLINK 16
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_ICMPV6 58
#define MSG_PEEK 2
#define MSG_ERRQUEUE 0x2000
#define TIMER_SOFTIRQ 1
#define NET_TX_SOFTIRQ 2
#define NET_RX_SOFTIRQ 3
#define HRTIMER_SOFTIRQ 8
#define TCP_ESTABLISHED 1
#define TCP_SYN_SENT 2
#define TCP_SYN_RECV 3
#define TCP_FIN_WAIT1 4
#define TCP_TIME_WAIT 6
#define TCP_CLOSE 7
#define TCP_LAST_ACK 9
#define TCP_LISTEN 10
#define TCP_NEW_SYN_RECV 12

enum sk_action {
	SK_DROP = 0,
	SK_PASS = 1,
};

/* Also user-space API: the context of programs that select a socket of a group. */
struct sk_reuseport_md {
	__u64 data, data_end;
	__u32 len, eth_protocol, ip_protocol, bind_inany, hash;
};

enum xdp_action {
	XDP_PASS = 2,
};

/* The same, of programs that see received packets first. */
struct xdp_md {
	__u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};

struct sock_filter {
	__u16 code;
	__u8 jt, jf;
	__u32 k;
};

/* Registers at a kprobe, as named by PT_REGS_PARM1() and related macros; not resolved through BTF. */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	u64 regs[31], sp, pc, pstate;
};
struct pt_regs;
#endif

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct net {
	struct ns_common ns;
	struct hlist_head *dev_index_head;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct Qdisc_ops {
	char id[16];
};

struct Qdisc {
	const struct Qdisc_ops *ops;
};

struct netdev_queue {
	struct Qdisc *qdisc;
	unsigned long state;
};

struct net_device {
	char name[16];
	int ifindex;
	struct netdev_queue *_tx;
	possible_net_t nd_net;
	struct hlist_node index_hlist;
};

struct dst_entry {
	struct net_device *dev;
};

struct napi_struct {
	struct net_device *dev;
	unsigned int napi_id;
};

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	atomic_t refs;
} refcount_t;

struct sk_buff {
	struct sk_buff *next;
	struct sk_buff *prev;
	struct net_device *dev;
	struct sock *sk;
	char cb[48];
	unsigned long _skb_refdst;
	int skb_iif;
	__be16 protocol;
	__u16 network_header;
	__u16 transport_header;
	__u16 mac_header;
	__u16 queue_mapping;
	refcount_t users;
	__u16 vlan_tci;
	__u32 vlan_all;
	__u8 cloned : 1;
	__u8 fclone : 2;
	__u8 encapsulation : 1;
	unsigned char *head;
	unsigned char *data;
	unsigned int len, data_len;
	unsigned int end; /* an offset from head */
	s64 tstamp;
	u16 alloc_cpu;
};

/* From 5.18 to 6.10, and since; both describe tstamp. */
struct sk_buff___mono {
	__u8 mono_delivery_time : 1;
};

struct sk_buff___type {
	__u8 tstamp_type : 2;
};

/* Before 6.2 */
struct sk_buff___vlan_present {
	__u8 vlan_present : 1;
};

/* GRO's data in the cb of an sk_buff. */
struct napi_gro_cb {
	void *frag0;
	unsigned int frag0_len;
};

struct sk_buff_fclones {
	struct sk_buff skb1;
	struct sk_buff skb2;
};

struct skb_shared_hwtstamps {
	s64 hwtstamp;
	void *netdev_data; /* replaces it since 5.19 */
};

struct skb_shared_info {
	__u8 tx_flags;
	unsigned short gso_size;
	unsigned short gso_segs;
	struct skb_shared_hwtstamps hwtstamps;
};

struct sk_buff_head {
	struct sk_buff *next;
	struct sk_buff *prev;
};

struct list_head {
	struct list_head *next;
};

struct wait_queue_head {
	struct list_head head;
};

struct socket_wq {
	struct wait_queue_head wait;
};

struct in6_addr {
	u8 bytes[16];
};

typedef struct {
	s64 counter;
} atomic64_t;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	unsigned int skc_hash;
	__be16 skc_dport;
	u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	int skc_incoming_cpu;
	unsigned short skc_rx_queue_mapping;
	atomic64_t skc_cookie;
};

struct inode {
	unsigned long i_ino;
};

struct file {
	struct inode *f_inode;
	void *private_data;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct io_ring_ctx;

struct io_cqe {
	u64 user_data;
	s32 res;
};

struct io_kiocb {
	struct file *file;
	u8 opcode;
	struct io_cqe cqe;
	struct io_ring_ctx *ctx;
};

/* The start of an io_kiocb that accepts. */
struct io_accept {
	u32 file_slot;
};

struct io_uring_cqe {
	u64 user_data;
	s32 res;
};

struct sock_fprog_kern {
	u16 len;
	struct sock_filter *filter;
};

struct bpf_prog_aux {
	u32 id;
	char name[16];
};

struct bpf_prog {
	u8 tag[8];
	struct bpf_prog_aux *aux;
	struct sock_fprog_kern *orig_prog;
};

struct sock_reuseport {
	u16 num_socks;
	struct bpf_prog *prog;
	struct sock *socks[];
};

struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	struct socket_wq *sk_wq;
	struct socket___kernel *sk_socket;
	struct sock_reuseport *sk_reuseport_cb;
	u16 sk_protocol;
	u8 sk_shutdown;
};

/* struct socket: ___ and what follows is not part of the name (CO-RE); inflight.h has its own struct socket */
struct socket___kernel {
	struct file *file;
	struct sock *sk;
};

struct inet_sock {
	__be16 inet_sport;
};

/* Before 5.16 */
struct inet_sock___rx_dst_ifindex {
	int rx_dst_ifindex;
};

struct sock___rx_dst_ifindex {
	int sk_rx_dst_ifindex;
};

struct inet_connection_sock {
	u8 icsk_ca_state : 5;
};

struct minmax_sample {
	u32 t;
	u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_sock {
	u32 rcv_nxt;
	u64 bytes_sent, bytes_acked, bytes_received, bytes_retrans;
	u32 segs_out, segs_in, data_segs_out, data_segs_in;
	u32 total_retrans, dsack_dups, reord_seen, rcv_ooopack;
	u32 delivered, delivered_ce;
	u32 srtt_us, mdev_us;
	u32 snd_wnd, rcv_wnd;
	u32 copied_seq;
	struct minmax rtt_min;
};

/* TCP's data in the cb of an sk_buff. */
struct tcp_skb_cb {
	u32 seq, end_seq;
};

struct udp_sock {
	struct sk_buff_head reader_queue;
};

struct kernfs_node {
	u64 id;
	const char *name;
	struct kernfs_node *parent;
};

struct kernfs_node___rcu {
	struct kernfs_node *__parent;
};

struct cgroup {
	int level;
	struct kernfs_node *kn;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

/* Their values depend on the kernel's configuration. */
enum cgroup_subsys_id {
	cpu_cgrp_id = 1,
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct damon_addr_range {
	unsigned long start;
	unsigned long end;
};

struct damon_region {
	struct damon_addr_range ar;
	unsigned int nr_accesses;
	unsigned int age;
};

struct css_set {
	struct cgroup_subsys_state *subsys[1];
	struct cgroup *dfl_cgrp;
};

/* The kernel has as many of these as it has helpers. */
enum bpf_func_id {
	BPF_FUNC_task_pt_regs = 175,
	BPF_FUNC_ktime_get_tai_ns = 208,
};

struct thread_info {
	u32 cpu;
};

struct rq {
	u64 clock;
	u64 prev_steal_time;
	int cpu;
};

struct cfs_rq {
	struct rq *rq;
	struct task_group *tg;
	u64 throttled_clock;
	u64 throttled_clock_pelt_time;
	int throttle_count;
};

/* Before 5.19. */
struct cfs_rq___old {
	u64 throttled_clock_task_time;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
};

struct sched_info {
	u64 last_queued;
};

struct nsproxy {
	struct net *net_ns;
};

/* One of two names of the state, and one of two locations of the CPU. */
struct task_struct {
	int pid;
	struct nsproxy *nsproxy;
	struct pid *thread_pid;
	struct mm_struct *mm;
	struct task_struct *group_leader;
	struct css_set *cgroups;
	struct files_struct *files;
	int prio;
	unsigned int policy;
	char comm[16];
	unsigned int __state;
	struct thread_info thread_info;
	struct task_group *sched_task_group;
	struct sched_entity se;
	unsigned int in_iowait : 1;
	bool throttled;
	struct sched_info sched_info;
};

struct mm_struct {
	struct task_struct *owner;
};

/* For arm64. */
struct pt_regs___call {
	u64 orig_x0;
	s32 syscallno;
};

struct task_struct___old {
	volatile long state;
	unsigned int cpu;
};

struct task_group {
	struct task_group *parent;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

struct bpf_iter__udp {
	struct bpf_iter_meta *meta;
	struct udp_sock *udp_sk;
};


#pragma clang attribute pop

#endif
