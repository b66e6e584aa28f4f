"""Steering in a guest with two nodes: its NIC's interrupts on one CPU, RPS to the far node."""

from lab import Host

from .hosts import TWO_NODES

# The CPUs of node 1, in the kernel's format.
FAR_MASK = f"{sum(1 << cpu for cpu in TWO_NODES.cpus_of(1)):08x}"
NO_MASK = "00000000"


def take_interrupts(host: Host, cpu: int) -> None:
    """Moves all of the NIC's interrupts to a CPU, and keeps learnt flows in OVS."""
    irqs = "$(grep nic0 /proc/interrupts | cut -d : -f 1)"
    host.check(f"for irq in {irqs}; do echo {cpu} >/proc/irq/$irq/smp_affinity_list; done")
    # A packet without a flow in OVS goes through ovs-vswitchd.
    host.check("ovs-vsctl set Open_vSwitch . other_config:max-idle=600000")


def steer(host: Host, mask: str) -> None:
    """Sets RPS of each of the NIC's queues."""
    host.check(f"for queue in /sys/class/net/nic0/queues/rx-*; do echo {mask} >$queue/rps_cpus; done")


def masks(host: Host) -> set[str]:
    """RPS of the NIC's queues."""
    return {f"{int(line, 16):08x}" for line in host.check("cat /sys/class/net/nic0/queues/rx-*/rps_cpus").split()}
