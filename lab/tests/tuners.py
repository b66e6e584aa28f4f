"""What Scylla's perftune.py and tuned's profiles make of a guest with nic0, done here as their sources say.

Input: a guest and its server. Neither program is in the guests; what is repeated here is only what places packets or
delays them, with the CPUs that perftune.py's `--mode` and `auto_detect_irq_mask`, and tuned's profiles (2.20), choose.
"""

from collections.abc import Sequence

from lab import Host

from .changes import QUEUES

# network-latency.
LATENCY = (
    "net.core.busy_read=50",
    "net.core.busy_poll=50",
    "net.ipv4.tcp_fastopen=3",
    "kernel.numa_balancing=0",
)
# network-throughput.
THROUGHPUT = (
    "net.ipv4.tcp_rmem=4096 87380 16777216",
    "net.ipv4.tcp_wmem=4096 16384 16777216",
    "net.core.somaxconn=2048",
)
# cpu-partitioning, beyond network-latency.
PARTITIONING = ("vm.stat_interval=10", "kernel.timer_migration=0")


def perftune(host: Host, server: int, mode: str) -> None:
    """`perftune.py --tune net --nic nic0 --mode MODE`, and the server on the CPUs of `--get-cpu-mask`.

    Its CPUs are of the whole host, whichever node the NIC is on: CPU 0, the first core, or all. Without a mode it takes
    `sq_split` on hosts of 5 to 16 cores.
    """
    topology = host.machine.topology
    every = list(range(topology.cpus))
    irqs = {"mq": every, "sq": every[:1], "sq_split": every[: topology.threads]}[mode]
    application = every if mode == "mq" else [cpu for cpu in every if cpu not in irqs]
    # As many receive queues as CPUs for interrupts; the driver may refuse more than it has.
    host.run(f"ethtool -L nic0 combined {len(irqs)}")
    place_interrupts(host, irqs)
    queues = len(host.check(f"ls -d {QUEUES}/rx-*").splitlines())
    # Both directions share a pool of 32768 flows.
    host.check(
        f"for queue in {QUEUES}/rx-*; do echo {mask(every)} >$queue/rps_cpus;"
        f" echo {32768 // queues} >$queue/rps_flow_cnt; done"
    )
    sysctl(host, "net.core.rps_sock_flow_entries=32768", "net.core.somaxconn=4096", "net.ipv4.tcp_max_syn_backlog=4096")
    for queue in range(queues):
        share = every[len(every) * queue // queues : len(every) * (queue + 1) // queues]
        host.check(f"echo {mask(share)} >{QUEUES}/tx-{queue}/xps_cpus")
    bind(host, server, application)


def network_latency(host: Host, server: int) -> None:
    """tuned's profile network-latency: it places nothing."""
    sysctl(host, *LATENCY)


def network_throughput(host: Host, server: int) -> None:
    """tuned's profile network-throughput: it places nothing."""
    sysctl(host, *THROUGHPUT)


def cpu_partitioning(host: Host, server: int) -> None:
    """tuned's profile cpu-partitioning, as an expert sets it up: on the NIC's node, the first core is for housekeeping
    and interrupts, the others are isolated and the server's. (What needs a reboot is left out.)"""
    topology = host.machine.topology
    near = list(topology.cpus_of(1))
    sysctl(host, *LATENCY, *PARTITIONING)
    host.run(f"ethtool -L nic0 combined {topology.threads}")
    place_interrupts(host, near[: topology.threads])
    host.check(f"echo {mask(range(near[topology.threads]))} >/sys/devices/virtual/workqueue/cpumask")
    bind(host, server, near[topology.threads :])


def place_interrupts(host: Host, cpus: Sequence[int]) -> None:
    """The interrupt of each queue to one of these CPUs, spread over them."""
    # With one channel, igb has an interrupt for each direction.
    lines = host.check("grep -E 'nic0-(TxRx|rx|tx)-' /proc/interrupts").splitlines()
    irqs = [line.split(":")[0].strip() for line in lines]
    for number, irq in enumerate(irqs):
        cpu = cpus[number * len(cpus) // len(irqs)] if len(irqs) <= len(cpus) else cpus[number % len(cpus)]
        host.check(f"echo {cpu} >/proc/irq/{irq}/smp_affinity_list")


def bind(host: Host, server: int, cpus: Sequence[int]) -> None:
    """All threads of the server may run on these CPUs only."""
    host.check(["taskset", "--all-tasks", "--cpu-list", "--pid", ",".join(map(str, cpus)), str(server)])


def sysctl(host: Host, *settings: str) -> None:
    """Sets sysctls; kernels without one of them ignore it, as the tuners do."""
    host.check(["sysctl", "--quiet", "--ignore", *settings])


def mask(cpus: Sequence[int]) -> str:
    """A mask of less than 32 CPUs, in hex."""
    return f"{sum(1 << cpu for cpu in cpus):x}"
