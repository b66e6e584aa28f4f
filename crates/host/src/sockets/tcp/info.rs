//! `struct tcp_info` (include/uapi/linux/tcp.h), which grows with each kernel: a field is read if the kernel's
//! is long enough to have it.

/// Length in Linux 5.10, the oldest kernel supported: up to and including `tcpi_snd_wnd`.
const LENGTH_5_10: usize = 232;

/// What the kernel knows about a connection. Times are in the units of the kernel: microseconds, if the name
/// says nothing else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of struct tcp_info, without the prefix tcpi_")]
pub struct TcpInfo {
    pub state: u8,
    pub ca_state: u8,
    /// Retransmission time-outs since the last acknowledgement.
    pub retransmits: u8,
    /// Window probes that were not answered.
    pub probes: u8,
    pub backoff: u8,
    /// `TCPI_OPT_*`.
    pub options: u8,
    pub snd_wscale: u8,
    pub rcv_wscale: u8,
    /// Whether the delivery rate was limited by the application.
    pub delivery_rate_app_limited: bool,
    pub rto: u32,
    pub ato: u32,
    pub snd_mss: u32,
    pub rcv_mss: u32,
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    pub last_data_sent_ms: u32,
    pub last_data_recv_ms: u32,
    pub last_ack_recv_ms: u32,
    pub pmtu: u32,
    pub rcv_ssthresh: u32,
    pub rtt: u32,
    pub rttvar: u32,
    pub snd_ssthresh: u32,
    pub snd_cwnd: u32,
    pub advmss: u32,
    pub reordering: u32,
    pub rcv_rtt: u32,
    pub rcv_space: u32,
    pub total_retrans: u32,
    /// Bytes per second; `u64::MAX` is unlimited.
    pub pacing_rate: u64,
    pub max_pacing_rate: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub notsent_bytes: u32,
    /// `u32::MAX` without a sample.
    pub min_rtt: u32,
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    /// Bytes per second.
    pub delivery_rate: u64,
    pub busy_time: u64,
    pub rwnd_limited: u64,
    pub sndbuf_limited: u64,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub dsack_dups: u32,
    pub reord_seen: u32,
    pub rcv_ooopack: u32,
    /// The receiver's window, in bytes.
    pub snd_wnd: u32,
    /// The window offered to the peer, in bytes; since Linux 6.2.
    pub rcv_wnd: Option<u32>,
    /// Changes of the flow's hash after time-outs; since Linux 6.2.
    pub rehash: Option<u32>,
    /// Retransmission time-outs of the connection; since Linux 6.7.
    pub total_rto: Option<u16>,
    /// Recoveries that began with a time-out; since Linux 6.7.
    pub total_rto_recoveries: Option<u16>,
    /// Time in such recoveries, in milliseconds; since Linux 6.7.
    pub total_rto_time_ms: Option<u32>,
}

impl TcpInfo {
    /// Parses the attribute; `None` if it is shorter than that of Linux 5.10.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < LENGTH_5_10 {
            return None;
        }
        let u8_at = |at: usize| bytes.get(at).copied();
        let u16_at = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let u32_at = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        // Bit fields start at the low end of the byte on little-endian machines, else at the high end.
        let (scales, flags) = (u8_at(6)?, u8_at(7)?);
        let little = cfg!(target_endian = "little");
        let (low, high) = (scales & 15, scales >> 4);
        Some(Self {
            state: u8_at(0)?,
            ca_state: u8_at(1)?,
            retransmits: u8_at(2)?,
            probes: u8_at(3)?,
            backoff: u8_at(4)?,
            options: u8_at(5)?,
            snd_wscale: if little { low } else { high },
            rcv_wscale: if little { high } else { low },
            delivery_rate_app_limited: flags & (if little { 1 } else { 0x80 }) != 0,
            rto: u32_at(8)?,
            ato: u32_at(12)?,
            snd_mss: u32_at(16)?,
            rcv_mss: u32_at(20)?,
            unacked: u32_at(24)?,
            sacked: u32_at(28)?,
            lost: u32_at(32)?,
            retrans: u32_at(36)?,
            last_data_sent_ms: u32_at(44)?,
            last_data_recv_ms: u32_at(52)?,
            last_ack_recv_ms: u32_at(56)?,
            pmtu: u32_at(60)?,
            rcv_ssthresh: u32_at(64)?,
            rtt: u32_at(68)?,
            rttvar: u32_at(72)?,
            snd_ssthresh: u32_at(76)?,
            snd_cwnd: u32_at(80)?,
            advmss: u32_at(84)?,
            reordering: u32_at(88)?,
            rcv_rtt: u32_at(92)?,
            rcv_space: u32_at(96)?,
            total_retrans: u32_at(100)?,
            pacing_rate: u64_at(104)?,
            max_pacing_rate: u64_at(112)?,
            bytes_acked: u64_at(120)?,
            bytes_received: u64_at(128)?,
            segs_out: u32_at(136)?,
            segs_in: u32_at(140)?,
            notsent_bytes: u32_at(144)?,
            min_rtt: u32_at(148)?,
            data_segs_in: u32_at(152)?,
            data_segs_out: u32_at(156)?,
            delivery_rate: u64_at(160)?,
            busy_time: u64_at(168)?,
            rwnd_limited: u64_at(176)?,
            sndbuf_limited: u64_at(184)?,
            delivered: u32_at(192)?,
            delivered_ce: u32_at(196)?,
            bytes_sent: u64_at(200)?,
            bytes_retrans: u64_at(208)?,
            dsack_dups: u32_at(216)?,
            reord_seen: u32_at(220)?,
            rcv_ooopack: u32_at(224)?,
            snd_wnd: u32_at(228)?,
            rcv_wnd: u32_at(232),
            rehash: u32_at(236),
            total_rto: u16_at(240),
            total_rto_recoveries: u16_at(242),
            total_rto_time_ms: u32_at(244),
        })
    }
}
