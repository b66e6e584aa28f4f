//! The keywords of DPVS and what each takes, as its modules install them (`install_*_keywords` in src/*.c,
//! `install_keywords` in src/cfgfile.c), of the releases 1.8.2 to 1.10.2. The ones that nearpath interprets have a
//! [`Meaning`].

use super::DpvsVersion;

/// A keyword at its level.
#[derive(Debug)]
pub(super) struct Keyword {
    pub name: &'static str,
    pub takes: Takes,
    pub meaning: Meaning,
    /// The keywords inside of its block; DPVS reads a block wherever there are any, with or without `{`.
    pub below: &'static [Keyword],
    /// The first release that knows it, as far as it is known.
    pub since: Option<DpvsVersion>,
    /// The last release that knows it, if the newest does not.
    pub until: Option<DpvsVersion>,
}

impl Keyword {
    const fn since(mut self, major: u8, minor: u8, patch: u8) -> Self {
        self.since = Some(DpvsVersion(major, minor, patch));
        self
    }

    const fn until(mut self, major: u8, minor: u8, patch: u8) -> Self {
        self.until = Some(DpvsVersion(major, minor, patch));
        self
    }

    /// Whether this release knows it.
    pub(super) fn is_in(&self, version: DpvsVersion) -> bool {
        self.since.is_none_or(|since| version >= since)
            && self.until.is_none_or(|until| version <= until)
    }
}

/// What a keyword needs on its line. Without it DPVS aborts, or reads beyond its array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    /// One value, read by `set_value`.
    Value,
    /// The second token, as the name of a block.
    Name,
    /// Any number of values, even none.
    List,
    /// One value or more.
    Values,
}

/// What nearpath makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Of no concern to workers and ports.
    Other,
    NetifDefs,
    WorkerDefs,
    PktpoolSize,
    PktpoolCache,
    Device,
    RxQueueNumber,
    TxQueueNumber,
    RxDescriptors,
    TxDescriptors,
    Rss,
    Mtu,
    Bonding,
    BondMode,
    BondSlave,
    BondPrimary,
    BondNode,
    BondOptions,
    Worker,
    Type,
    CpuId,
    IcmpRedirectCore,
    Port,
    RxQueueIds,
    TxQueueIds,
    IsolatedRxIds,
    IsolatedRingSize,
}

use Meaning as M;

const fn keyword(name: &'static str, takes: Takes, meaning: Meaning) -> Keyword {
    block(name, takes, meaning, &[])
}

const fn value(name: &'static str) -> Keyword {
    keyword(name, Takes::Value, Meaning::Other)
}

const fn flag(name: &'static str) -> Keyword {
    keyword(name, Takes::Nothing, Meaning::Other)
}

const fn block(
    name: &'static str,
    takes: Takes,
    meaning: Meaning,
    below: &'static [Keyword],
) -> Keyword {
    Keyword { name, takes, meaning, below, since: None, until: None }
}

const fn section(name: &'static str, below: &'static [Keyword]) -> Keyword {
    block(name, Takes::Nothing, Meaning::Other, below)
}

/// The sections of a configuration.
pub(super) const ROOT: &[Keyword] = &[
    section(
        "global_defs",
        &[
            value("log_level"),
            value("log_file"),
            value("log_async_mode"),
            value("log_with_timestamp").since(1, 9, 2),
            value("log_async_pool_size").since(1, 9, 2),
            value("kni").since(1, 9, 4),
            value("lldp").since(1, 9, 8),
            value("pdump").since(1, 8, 8),
        ],
    ),
    block("netif_defs", Takes::Nothing, M::NetifDefs, NETIF),
    block("worker_defs", Takes::Nothing, M::WorkerDefs, WORKERS),
    section("timer_defs", &[value("schedule_interval")]),
    section("neigh_defs", &[value("unres_queue_length"), value("timeout")]),
    section("sa_pool", &[value("pool_hash_size"), value("flow_enable").since(1, 9, 0)]),
    section(
        "ipv4_defs",
        &[
            value("default_ttl"),
            value("forwarding"),
            section(
                "fragment",
                &[
                    value("bucket_number"),
                    value("bucket_entries"),
                    value("max_entries"),
                    value("ttl"),
                ],
            ),
        ],
    ),
    section("ipset_defs", &[value("ipset_hash_pool_size")]).since(1, 8, 12),
    section(
        "ctrl_defs",
        &[
            section(
                "lcore_msg",
                &[value("ring_size"), value("sync_msg_timeout_us"), value("priority_level")],
            ),
            section("ipc_msg", &[value("unix_domain")]).until(1, 9, 4),
        ],
    ),
    section("ipvs_defs", IPVS),
    section(
        "ipv6_defs",
        &[
            value("forwarding"),
            value("disable"),
            value("addr_gen_mode").since(1, 9, 8),
            value("stable_secret").since(1, 9, 8),
            section(
                "route6",
                &[
                    value("method"),
                    value("recycle_time"),
                    section(
                        "lpm",
                        &[
                            value("lpm6_max_rules"),
                            value("lpm6_num_tbl8s"),
                            value("rt6_array_size"),
                            value("rt6_hash_bucket"),
                        ],
                    ),
                ],
            ),
        ],
    ),
];

const NETIF: &[Keyword] = &[
    keyword("pktpool_size", Takes::Value, M::PktpoolSize),
    keyword("pktpool_cache", Takes::Value, M::PktpoolCache),
    value("fdir_mode").since(1, 9, 0),
    block(
        "device",
        Takes::Name,
        M::Device,
        &[
            section(
                "rx",
                &[
                    keyword("queue_number", Takes::Value, M::RxQueueNumber),
                    keyword("descriptor_number", Takes::Value, M::RxDescriptors),
                    keyword("rss", Takes::Value, M::Rss),
                ],
            ),
            section(
                "tx",
                &[
                    keyword("queue_number", Takes::Value, M::TxQueueNumber),
                    keyword("descriptor_number", Takes::Value, M::TxDescriptors),
                    value("mbuf_fast_free").since(1, 9, 10),
                ],
            ),
            section(
                "fdir",
                &[value("mode"), value("pballoc"), value("status"), value("filter").since(1, 8, 8)],
            )
            .until(1, 8, 12),
            flag("promisc_mode"),
            flag("allmulticast").since(1, 9, 6),
            keyword("mtu", Takes::Value, M::Mtu).since(1, 8, 10),
            value("kni_name"),
        ],
    ),
    block(
        "bonding",
        Takes::Name,
        M::Bonding,
        &[
            keyword("mode", Takes::Value, M::BondMode),
            keyword("slave", Takes::Value, M::BondSlave),
            keyword("primary", Takes::Value, M::BondPrimary),
            keyword("numa_node", Takes::Value, M::BondNode).since(1, 9, 0),
            value("kni_name"),
            keyword("options", Takes::Value, M::BondOptions).since(1, 8, 12),
        ],
    ),
];

const WORKERS: &[Keyword] = &[block(
    "worker",
    Takes::Name,
    M::Worker,
    &[
        keyword("type", Takes::Value, M::Type),
        keyword("cpu_id", Takes::Value, M::CpuId),
        keyword("icmp_redirect_core", Takes::Nothing, M::IcmpRedirectCore).since(1, 8, 10),
        block(
            "port",
            Takes::Name,
            M::Port,
            &[
                keyword("rx_queue_ids", Takes::List, M::RxQueueIds),
                keyword("tx_queue_ids", Takes::List, M::TxQueueIds),
                keyword("isol_rx_cpu_ids", Takes::Values, M::IsolatedRxIds),
                keyword("isol_rxq_ring_sz", Takes::Value, M::IsolatedRingSize),
            ],
        ),
    ],
)];

const IPVS: &[Keyword] = &[
    section(
        "conn",
        &[
            value("conn_pool_size"),
            value("conn_pool_cache"),
            value("conn_init_timeout"),
            flag("expire_quiescent_template"),
            value("redirect"),
            flag("fast_xmit_close"),
            flag("xmit_ttl"),
        ],
    ),
    section(
        "tcp",
        &[
            flag("defence_tcp_drop"),
            value("toa_mode"),
            section(
                "timeout",
                &[
                    value("none"),
                    value("established"),
                    value("syn_sent"),
                    value("syn_recv"),
                    value("fin_wait"),
                    value("time_wait"),
                    value("close"),
                    value("close_wait"),
                    value("last_ack"),
                    value("listen"),
                    value("synack"),
                    value("last"),
                ],
            ),
            section(
                "synproxy",
                &[
                    section(
                        "synack_options",
                        &[
                            value("mss"),
                            value("ttl"),
                            flag("sack"),
                            value("wscale"),
                            flag("timestamp"),
                        ],
                    ),
                    flag("close_client_window").since(1, 9, 2),
                    flag("defer_rs_syn"),
                    value("rs_syn_max_retry"),
                    value("ack_storm_thresh"),
                    value("max_ack_saved"),
                    section(
                        "conn_reuse_state",
                        &[
                            flag("close"),
                            flag("time_wait"),
                            flag("fin_wait"),
                            flag("close_wait"),
                            flag("last_ack"),
                        ],
                    ),
                ],
            ),
        ],
    ),
    section(
        "udp",
        &[
            flag("defence_udp_drop"),
            value("uoa_max_trail"),
            value("uoa_mode"),
            section("timeout", &[value("normal"), value("oneway").since(1, 9, 6), value("last")]),
        ],
    ),
];
