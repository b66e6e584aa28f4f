//! Driver counters (`ethtool -S`) of loss and flow control, by their names in common
//! drivers (`get_strings` in drivers/net/ethernet).

/// Kind of a driver counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CounterKind {
    /// Received packets dropped because the ring had no buffer.
    NoBuffer,
    /// Received packets dropped in the device or the driver because another buffer was full.
    RxDiscard,
    /// Packets that could not be sent.
    TxDiscard,
    /// Packets that the cloud provider dropped or delayed because of a limit of the instance.
    Allowance,
    /// Pause frames received: the link partner requested a pause.
    PauseRx,
    /// Pause frames sent: this device could not keep up.
    PauseTx,
}

use CounterKind::{Allowance, NoBuffer, PauseRx, PauseTx, RxDiscard, TxDiscard};

/// Names with each run of digits as `#`.
const NAMES: &[(&str, CounterKind)] = &[
    // mlx5 (mellanox/mlx5/core/en_stats.c), mlx4
    ("rx_out_of_buffer", NoBuffer),
    ("rx_discards_phy", RxDiscard),
    ("tx_discards_phy", TxDiscard),
    ("rx_prio#_buf_discard", RxDiscard),
    ("rx_pause_ctrl_phy", PauseRx),
    ("tx_pause_ctrl_phy", PauseTx),
    ("rx_global_pause", PauseRx),
    ("tx_global_pause", PauseTx),
    ("rx_prio#_pause", PauseRx),
    ("tx_prio#_pause", PauseTx),
    // ixgbe, igb, igc (intel/*/ *_ethtool.c)
    ("rx_no_buffer_count", NoBuffer),
    ("rx_no_dma_resources", NoBuffer),
    ("rx_queue_#_drops", NoBuffer),
    ("rx_flow_control_xoff", PauseRx),
    ("tx_flow_control_xoff", PauseTx),
    ("rx_pb_#_pxoff", PauseRx),
    ("tx_pb_#_pxoff", PauseTx),
    // i40e, ice
    ("port.rx_dropped", RxDiscard),
    ("rx_dropped.nic", RxDiscard),
    ("port.link_xoff_rx", PauseRx),
    ("port.link_xoff_tx", PauseTx),
    ("link_xoff_rx.nic", PauseRx),
    ("link_xoff_tx.nic", PauseTx),
    ("rx_priority_#_xoff.nic", PauseRx),
    ("tx_priority_#_xoff.nic", PauseTx),
    // bnxt (broadcom/bnxt/bnxt_ethtool.c)
    ("rx_total_discard_pkts", RxDiscard),
    ("rx_total_oom_discards", NoBuffer),
    ("rx_stat_discard", RxDiscard),
    ("tx_stat_discard", TxDiscard),
    ("rx_pause_frames", PauseRx),
    ("tx_pause_frames", PauseTx),
    ("rx_pfc_ena_frames_pri#", PauseRx),
    ("tx_pfc_ena_frames_pri#", PauseTx),
    // ena (amazon/ena/ena_ethtool.c)
    ("rx_drops", NoBuffer),
    ("bw_in_allowance_exceeded", Allowance),
    ("bw_out_allowance_exceeded", Allowance),
    ("pps_allowance_exceeded", Allowance),
    ("conntrack_allowance_exceeded", Allowance),
    ("linklocal_allowance_exceeded", Allowance),
    // gve (google/gve/gve_ethtool.c)
    ("rx_no_buffers_posted[#]", NoBuffer),
    ("rx_queue_drop_cnt[#]", NoBuffer),
    // virtio_net (net/virtio_net.c)
    ("rx#_drops", NoBuffer),
    ("rx#_hw_drops", RxDiscard),
    ("rx#_hw_drop_overruns", NoBuffer),
    ("tx#_hw_drops", TxDiscard),
    // vmxnet3
    ("pkts rx OOB", NoBuffer),
    ("drv dropped rx total", RxDiscard),
    ("pkts tx discard", TxDiscard),
    ("drv dropped tx total", TxDiscard),
    // sfc
    ("port_rx_nodesc_drops", NoBuffer),
    ("rx_noskb_drops", NoBuffer),
    ("port_rx_pause", PauseRx),
    ("port_tx_pause", PauseTx),
    ("port_rx_overflow", RxDiscard),
    // be2net (emulex/benet/be_ethtool.c)
    ("rxq#: rx_drops_no_frags", NoBuffer),
    ("rxq#: rx_drops_no_skbs", NoBuffer),
    ("rx_drops_no_erx_descr", NoBuffer),
    ("rx_drops_no_pbuf", RxDiscard),
    ("rx_drops_no_txpb", RxDiscard),
    ("rx_drops_no_tpre_descr", RxDiscard),
    ("rx_input_fifo_overflow_drop", RxDiscard),
    ("rxpp_fifo_overflow_drop", RxDiscard),
    ("eth_red_drops", RxDiscard),
    ("txq#: tx_drv_drops", TxDiscard),
    ("tx_pauseframes", PauseTx),
    // bnx2x, bnx2, tg3 (broadcom/)
    ("[#]: rx_discards", NoBuffer),
    ("[#]: rx_skb_alloc_discard", NoBuffer),
    ("rx_discards", NoBuffer),
    ("rx_skb_alloc_discard", NoBuffer),
    ("rx_brb_discard", RxDiscard),
    ("pause_frames_received", PauseRx),
    ("pause_frames_sent", PauseTx),
    ("rx_fw_discards", NoBuffer),
    ("rx_ftq_discards", RxDiscard),
    ("rx_xoff_frames", PauseRx),
    ("tx_xoff_frames", PauseTx),
    ("rxbds_empty", NoBuffer),
    ("rx_xoff_pause_rcvd", PauseRx),
    ("tx_xoff_sent", PauseTx),
    // qede (qlogic/qede/qede_ethtool.c)
    ("no_buff_discards", NoBuffer),
    ("brb_discards", RxDiscard),
    ("tx_err_drop_pkts", TxDiscard),
    // hns3, hinic (hisilicon/hns3/hns3_ethtool.c, huawei/hinic/hinic_ethtool.c)
    ("rxq#_dropped", RxDiscard),
    ("txq#_dropped", TxDiscard),
    ("mac_rx_mac_pause_num", PauseRx),
    ("mac_tx_mac_pause_num", PauseTx),
    ("rx_discard_vport", RxDiscard),
    ("tx_discard_vport", TxDiscard),
    ("mac_rx_pause_num", PauseRx),
    ("mac_tx_pause_num", PauseTx),
    // nfp (netronome/nfp/nfp_net_ethtool.c)
    ("dev_rx_discards", NoBuffer),
    ("dev_tx_discards", TxDiscard),
    ("mac.rx_pause_mac_ctrl_frames", PauseRx),
    ("mac.tx_pause_mac_ctrl_frames", PauseTx),
    // cxgb4, enic (chelsio/cxgb4/cxgb4_ethtool.c, cisco/enic/enic_ethtool.c)
    ("rx_bg#_frames_dropped", RxDiscard),
    ("rx_no_bufs", NoBuffer),
    ("rx_drop", RxDiscard),
    ("tx_drops", TxDiscard),
    // nicvf, dpaa2, atlantic, mana, ionic, hv_netvsc
    ("rx_drop_overrun", RxDiscard),
    ("rx_drop_red", RxDiscard),
    ("[hw] rx nobuffer discards", NoBuffer),
    ("[hw] rx discarded frames", RxDiscard),
    ("InDroppedDma", NoBuffer),
    ("hc_rx_discards_no_wqe", NoBuffer),
    ("hw_rx_dropped", RxDiscard),
    ("hw_tx_dropped", TxDiscard),
    ("tx_no_memory", TxDiscard),
    ("tx_no_space", TxDiscard),
    ("vf_tx_dropped", TxDiscard),
];

/// The kind of a counter by its name; `None` if it is not about loss or flow control.
pub fn counter_kind(name: &str) -> Option<CounterKind> {
    let general = counter_name(name);
    NAMES.iter().find(|(known, _)| *known == general).map(|(_, kind)| *kind)
}

/// The name with each run of digits as `#`: so counters of queues and priorities share a name.
pub fn counter_name(name: &str) -> String {
    let mut general = String::with_capacity(name.len());
    for letter in name.trim_start().chars() {
        match letter.is_ascii_digit() {
            true if general.ends_with('#') => {}
            true => general.push('#'),
            false => general.push(letter),
        }
    }
    general
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_drivers() {
        for (name, kind) in [
            ("rx_out_of_buffer", Some(NoBuffer)),
            ("rx_prio3_pause", Some(PauseRx)),
            ("tx_prio0_pause", Some(PauseTx)),
            ("rx_queue_12_drops", Some(NoBuffer)),
            ("rx_no_buffers_posted[7]", Some(NoBuffer)),
            ("rx0_drops", Some(NoBuffer)),
            ("  pkts rx OOB", Some(NoBuffer)),
            ("rxq0: rx_drops_no_frags", Some(NoBuffer)),
            ("[12]: rx_discards", Some(NoBuffer)),
            // Before and after 5.6.
            ("rxq#3_dropped", Some(RxDiscard)),
            ("rxq3_dropped", Some(RxDiscard)),
            ("rx_dropped_tcp_length", None),
            ("rxq0: rx_pkts", None),
            ("pps_allowance_exceeded", Some(Allowance)),
            ("rx_packets", None),
            ("rx_queue_12_packets", None),
            ("rx_prio3_pause_duration", None),
            ("", None),
        ] {
            assert_eq!(counter_kind(name), kind, "{name}");
        }
    }
}
