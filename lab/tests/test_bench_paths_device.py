"""`nearpath bench paths` to a virtual machine with a NIC of its own (VFIO), whose driver the guest is.

The host sees only the interrupts of such a NIC. The judges are the guest, which counts the probes that it has taken,
and the kernel, which counts the interrupts.
"""

from lab import Host, Nic, linux_guest
from lab.fixtures import lab
from lab.vms import allow_vfio, give_device, pass_through, start_program

from .hosts import TWO_NODES
from .linux_guests import payload, start_guest_on_device
from .test_bench_paths import HEADERS, RATE, ROUNDS, SECONDS, SIZE, joined_nics, of_only
from .test_vm_devices import interrupt_of

__all__ = ["payload"]

NICS = (Nic("e1000e", node=1), Nic("e1000e", node=0))
NIC, PROBER = "nic1", "nic0"
ADDRESS, MAC = "10.9.1.50", "52:54:00:aa:00:50"
# Of the frames that the guest notes: without the header of virtio.
HEADERS_OF_NIC = HEADERS - 12


@lab(kernels=("6.1", "6.12", "7.2"), topology=TWO_NODES, nics=NICS, iommu=True)
def test_a_device_is_split_by_its_interrupts(host: Host) -> None:
    joined_nics(host)
    device = pass_through(host, NIC)
    vm = start_program(host, ["-e", "-c", "2", f"vfio:{device}"])
    host.check(f"ip -n prober neighbour replace {ADDRESS} lladdr {MAC} dev {PROBER} nud permanent")
    named = ["--vfio", f"vf={vm.pid}", "--load", "none"]
    _, before = interrupt_of(host, device)
    (row,) = of_only(host, [f"vf={ADDRESS}:9000"], *named)["paths"]
    raised = interrupt_of(host, device)[1] - before
    (unnamed,) = of_only(host, [f"vf={ADDRESS}:9000"], "--load", "none")["paths"]
    guest = vm.end()

    sent = RATE * SECONDS * ROUNDS
    assert (row["sent"], row["received"], row["lost"], row["not_split"]) == (sent, sent, 0, None), row
    assert (row["vm"]["pid"], row["vm"]["device"]) == (vm.pid, device), row
    queue = row["vm"]["queue"]
    counts = {span["span"]: span["count"] for span in queue["spans"]}
    probes = [note for note in guest.notes if note.payload[:4] == b"npL1" and note.length == HEADERS_OF_NIC + SIZE]
    taken = row["sent"] + row["uncounted"] + unnamed["sent"] + unnamed["uncounted"]
    assert len(probes) == taken, "the guest has had every probe, and no other"
    # At the rate of the probes each has an interrupt; so have packets of the network's own, and answers may.
    assert 0.9 * sent <= queue["taken"] <= raised, (queue, raised)
    for span in ("interrupt_to_kvm", "kvm_to_guest", "whole"):
        assert counts[span] == queue["taken"], counts
    whole = next(span for span in queue["spans"] if span["span"] == "whole")
    assert whole["p50_ns"] < row["percentiles"]["50"], "the way in is a part of the round trip"
    # Nothing is guessed: the interrupts might be those of any other traffic.
    assert unnamed["vm"] is None and "--vfio" in unnamed["not_split"], unnamed


@lab(kernels=("6.12",), topology=TWO_NODES, nics=(Nic("igb", node=1), Nic("igb", node=0)), iommu=True, has_guest=True)
def test_a_virtual_function_of_a_linux_guest_is_split(host: Host) -> None:
    joined_nics(host)
    allow_vfio(host)
    physical = host.check(f"basename $(readlink /sys/class/net/{NIC}/device)").strip()
    host.check(
        f"ip link set {NIC} up && echo 1 >/sys/bus/pci/devices/{physical}/sriov_numvfs"
        f" && ip link set {NIC} vf 0 mac {MAC}"
    )
    device = host.check(f"basename $(readlink /sys/bus/pci/devices/{physical}/virtfn0)").strip()
    give_device(host, device, "vfio-pci")
    qemu = start_guest_on_device(host, device, ADDRESS)
    target = f"vf={ADDRESS}:{linux_guest.REFLECTOR_PORT}"
    (row,) = of_only(host, [target], "--vfio", "vf=web1", "--load", "none")["paths"]
    sent = RATE * SECONDS * ROUNDS
    assert (row["sent"], row["received"], row["not_split"]) == (sent, sent, None), row
    assert (row["vm"]["pid"], row["vm"]["name"], row["vm"]["device"]) == (qemu.pid, "web1", device), row["vm"]
    queue = row["vm"]["queue"]
    counts = {span["span"]: span["count"] for span in queue["spans"]}
    print(counts, queue)
    # A probe's arrival and the answer's completion have an interrupt each, if they do not come together.
    assert 0.9 * sent <= queue["taken"] and counts["whole"] == counts["interrupt_to_kvm"] == queue["taken"], queue
