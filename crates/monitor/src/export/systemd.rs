//! Units of systemd. Their exposure is at most 3.5 by `systemd-analyze security`; a test measures it.

use super::Scraped;

/// The service.
pub fn service(_: Scraped) -> String {
    "\
# Written by: nearpath monitor export systemd. Put it in /etc/systemd/system/nearpath-monitor.service
[Unit]
Description=nearpath monitor
Documentation=man:nearpath-monitor(1)
After=network.target

[Service]
Type=notify
ExecStart=/usr/bin/nearpath monitor --listen 127.0.0.1:9477
Restart=on-failure
RestartSec=5
WatchdogSec=2min
MemoryMax=128M
CPUQuota=20%
TasksMax=64
Nice=5

# Programs in the kernel need CAP_BPF and CAP_PERFMON; their run-time statistics and descriptors of other programs
# CAP_SYS_ADMIN; queues and coalescing CAP_NET_ADMIN; sockets and memory of processes CAP_SYS_PTRACE. Threads that
# serve have none of them.
CapabilityBoundingSet=CAP_BPF CAP_PERFMON CAP_SYS_ADMIN CAP_NET_ADMIN CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_SYSLOG
# Not DynamicUser: files of other users' processes are read.
NoNewPrivileges=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
PrivateTmp=yes
DevicePolicy=closed
DeviceAllow=char-ptp r
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
PrivateMounts=yes
ProtectSystem=strict
RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK AF_UNIX
RestrictNamespaces=net
RestrictRealtime=yes
RestrictSUIDSGID=yes
RemoveIPC=yes
UMask=0077
IPAddressDeny=any
IPAddressAllow=localhost
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallFilter=bpf capset fsconfig fsmount fsopen perf_event_open setns
# A newer C library may try others: a refusal is no reason to end.
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"
    .to_owned()
}

/// The socket.
pub fn socket(_: Scraped) -> String {
    "\
# Written by: nearpath monitor export systemd-socket. Put it in /etc/systemd/system/nearpath-monitor.socket
[Unit]
Description=Socket of nearpath monitor

[Socket]
ListenStream=127.0.0.1:9477
Backlog=64

[Install]
WantedBy=sockets.target
"
    .to_owned()
}
