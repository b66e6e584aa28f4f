// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instrument "answers": how long a server takes from reading a request to sending the first segment or datagram of its
 * answer, by the port that it listens on.
 *
 * A read of a connection of a wanted port, or of a UDP socket bound to one, is remembered by its socket; the next packet
 * with data that this socket sends is the answer. Of several reads before it the last one counts. Threads may share a UDP
 * socket: then it is the thread that reads which answers.
 *
 * Every packet that is sent passes here, so the programs return early for all others, and stop for good after a number of
 * runs.
 */
#include "histogram.h"
#include "probe.h"
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

/* Answers that are awaited at the same time. */
#define AWAITED_MAX 16384
#define PORTS 65536
#define TCP 0
#define UDP 1
/* Runs that a CPU makes before it adds them to the sum of all. */
#define BATCH 64
#define MSG_PEEK 2
#define TCP_HEADER_LENGTH 12 /* offset of the byte with the length */

/* The network namespace whose ports are wanted. */
const volatile u32 only_netns;
/* By protocol and port: the number of the server, or 0. */
const volatile u8 server_of[2][PORTS];
/* Runs that may be made; 0: any number. */
const volatile u64 runs_max;

volatile u32 active;
u64 runs, ended_ns;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} runs_of_cpu SEC(".maps");

struct request {
	u64 read_ns;
	/* The hash of the connection's ends (skc_hash): the next one may have a socket at the same address. */
	u32 connection;
	u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, AWAITED_MAX);
	__type(key, u64);
	__type(value, struct request);
} awaited SEC(".maps");

/* By the number of the server; max_entries is set by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct histogram);
} answers SEC(".maps");

static __always_inline bool may_run(void)
{
	u32 zero = 0, *mine;

	if (!active)
		return false;
	mine = bpf_map_lookup_elem(&runs_of_cpu, &zero);
	if (!mine || ++*mine % BATCH)
		return true;
	__sync_fetch_and_add(&runs, BATCH);
	if (!runs_max || runs < runs_max)
		return true;
	active = 0;
	ended_ns = bpf_ktime_get_ns();
	return false;
}

/* The number of the server, or 0. */
static __always_inline u32 find_server(struct sock *sk, u32 protocol, const bool direct)
{
	u32 server = server_of[protocol][GET(direct, sk, __sk_common.skc_num)];

	if (server && only_netns && BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum) != only_netns)
		return 0;
	return server;
}

/* What identifies a request. */
static __always_inline u64 request_of(u64 sk, u32 protocol)
{
	return protocol == TCP ? sk : sk ^ (u64)(u32)bpf_get_current_pid_tgid() << 32;
}

static __always_inline u32 connection_of(struct sock *sk, u32 protocol)
{
	return protocol == TCP ? BPF_CORE_READ(sk, __sk_common.skc_hash) : 0;
}

static __always_inline void has_read(struct sock *sk, u32 protocol)
{
	u64 key = request_of(address_of((u64)sk), protocol);
	struct request request = {
		.read_ns = bpf_ktime_get_ns(),
		.connection = connection_of(sk, protocol),
	};

	bpf_map_update_elem(&awaited, &key, &request, BPF_ANY);
}

/* A receive call has copied data of a connection. */
PROBE(answer_segment, "tcp_rcv_space_adjust")
{
	struct sock *sk = (struct sock *)ctx[0];

	if (may_run() && find_server(sk, TCP, direct))
		has_read(sk, TCP);
}

/* A receive call returns, since Linux 6.3. */
PROBE(answer_datagram, "sock_recv_length")
{
	struct sock *sk = (struct sock *)ctx[0];

	if ((s32)ctx[1] <= 0 || ctx[2] & MSG_PEEK || !may_run())
		return;
	if (BPF_CORE_READ(sk, sk_protocol) == IPPROTO_UDP && find_server(sk, UDP, direct))
		has_read(sk, UDP);
}

/* Whether a segment has data; not known, and no, of one that is in a tunnel already: it has passed here before. */
static __always_inline bool has_data(struct sk_buff *skb, const bool direct)
{
	u64 data = address_of((u64)GET(direct, skb, data));
	u64 header = address_of((u64)GET(direct, skb, head)) + GET(direct, skb, transport_header);
	u8 words = 0;

	if (BPF_CORE_READ_BITFIELD_PROBED(skb, encapsulation))
		return false;
	bpf_probe_read_kernel(&words, sizeof(words), (void *)(header + TCP_HEADER_LENGTH));
	return GET(direct, skb, len) > header - data + (words >> 4) * 4;
}

PROBE(answer_sent, "net_dev_queue")
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	struct request *request;
	u32 server, protocol;
	u64 key, ns;
	struct histogram *h;
	struct sock *sk;

	if (!may_run())
		return;
	sk = (struct sock *)address_of((u64)GET(direct, skb, sk));
	if (!sk)
		return;
	switch (BPF_CORE_READ(sk, sk_protocol)) {
	case IPPROTO_TCP:
		protocol = TCP;
		break;
	case IPPROTO_UDP:
		protocol = UDP;
		break;
	default:
		return;
	}
	key = request_of((u64)sk, protocol);
	request = bpf_map_lookup_elem(&awaited, &key);
	if (!request || (protocol == TCP && !has_data(skb, direct)))
		return;
	/* A socket that is only there to complete a handshake or to wait has other fields: it has no request. */
	server = server_of[protocol][BPF_CORE_READ(sk, __sk_common.skc_num)];
	ns = bpf_ktime_get_ns() - request->read_ns;
	if (request->connection != connection_of(sk, protocol))
		server = 0;
	bpf_map_delete_elem(&awaited, &key);
	h = bpf_map_lookup_elem(&answers, &server);
	if (h && server)
		histogram_add(h, ns);
}

/* Run manually to measure the cost that the kernel's run-time statistics add to each run. */
SEC("raw_tp") int empty(void *ctx)
{
	return 0;
}
