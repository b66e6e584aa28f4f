"""DPDK in a guest: packets go through testpmd, and nearpath shows its workers, ports and memory by node.

The truth is where testpmd says that its ports and cores are, how it was started, and the frames that came through.
"""

import json

from lab import Host, Nic, Topology
from lab.fixtures import lab, representative

from . import dpdk

NEAR, FAR = dpdk.TWO_NODES.cpus_of(1)[0], dpdk.TWO_NODES.cpus_of(0)[1]
FRAMES = 200

on_dpdk_host = lab(
    kernels=("6.12",),
    topology=dpdk.TWO_NODES,
    nics=(Nic("igb", node=0), Nic("igb", node=1), Nic("vmxnet3", node=1)),
    variant="dpdk",
    iommu=True,
)


@on_dpdk_host
def test_testpmd_forwards_and_its_workers_are_shown(host: Host) -> None:
    """Whole NICs on vfio-pci, a worker on their node, the main lcore on the other."""
    dpdk.reserve_hugepages(host)
    devices = [dpdk.pci_address(host, nic) for nic in ("nic1", "nic2")]
    dpdk.bind(host, devices)
    # Lcore ids are not those of the CPUs.
    eal = f"--lcores 5@{FAR},9@{NEAR} --main-lcore 5 --socket-mem 0,192"
    testpmd = dpdk.start_testpmd(host, eal, "--total-num-mbufs=8192 --record-core-cycles")
    assert [dpdk.send_through(host, out, 3 - out, FRAMES) for out in (1, 2)] == [FRAMES, FRAMES]

    (process,) = dpdk.workers(host)["processes"]
    assert process["pid"] == testpmd.pid
    assert process["eal"][1:] == eal.split()
    lcores = {worker["lcore"]: worker for worker in process["workers"]}
    assert {id: (worker["cpus"], worker["node"], worker["role"]) for id, worker in lcores.items()} == {
        5: (str(FAR), 0, "main"),
        9: (str(NEAR), 1, "worker"),
    }
    assert 0 < lcores[9]["busy_percent"] < 100
    assert [port["name"] for port in process["ports"]] == devices
    assert all(port["node"] == 1 and port["rx_packets"] >= FRAMES for port in process["ports"]), process["ports"]
    assert process["heaps"]["1"] >= 192 << 20

    said = dpdk.stop_testpmd(host, testpmd)
    assert "Bye" in said, said
    assert dpdk.workers(host)["processes"] == []


@lab(kernels=("6.12",), topology=dpdk.TWO_NODES, nics=(Nic("igb", node=1),), variant="dpdk", iommu=True)
def test_virtual_functions_have_the_node_of_their_nic(host: Host) -> None:
    """Both ports are on one wire: frames to the first come back by the second."""
    dpdk.reserve_hugepages(host)
    devices = dpdk.add_virtual_functions(host, "nic0", 2)
    host.check("ip link set nic0 vf 0 mac 02:00:00:00:00:10 && ip link set nic0 vf 1 mac 02:00:00:00:00:11")
    dpdk.bind(host, devices)
    eal = f"--lcores 0@{FAR},1@{NEAR} --main-lcore 0 --socket-mem 0,192"
    testpmd = dpdk.start_testpmd(host, eal, "--total-num-mbufs=8192 --forward-mode=mac")
    assert dpdk.send_through(host, 0, 0, FRAMES, there="02:00:00:00:00:10") == FRAMES
    (process,) = dpdk.workers(host)["processes"]
    assert [(port["name"], port["node"]) for port in process["ports"]] == [(device, 1) for device in devices]
    dpdk.stop_testpmd(host, testpmd)


@representative
@on_dpdk_host
def test_a_pmd_of_open_vswitch_on_the_wrong_node_is_found_and_moved(host: Host) -> None:
    """Cross-node queues 1 -> 0, and after undoing the database is as before. The port's packets pass all along."""
    dpdk.reserve_hugepages(host)
    devices = [dpdk.pci_address(host, nic) for nic in ("nic1", "nic2")]
    dpdk.bind(host, devices)
    dpdk.start_ovs(host, f"other_config:pmd-cpu-mask={1 << FAR:x}")
    dpdk.add_ovs_port(host, "br1", "dpdk0", devices[0])
    before = host.check("ovs-vsctl get Open_vSwitch . other_config && ovs-vsctl get Interface dpdk0 other_config")
    assert dpdk.ovs_queues(host) == {("dpdk0", 0): (FAR, 0)}

    found = host.run("nearpath tune check-ovs --json")
    checked = json.loads(found.out)
    assert (found.status, checked["verdict"], checked["cross_node_queues"]) == (3, "changed", 1), found
    assert [problem["code"] for problem in checked["problems"]] == ["remote_queue"], checked
    assert "CPU 1 of node 0; the port is on node 1" in host.run("nearpath tune check-ovs").out

    host.check("nearpath tune plan --dpdk ovs --json >/root/plan.json && nearpath tune apply /root/plan.json")
    ((port, (cpu, node)),) = dpdk.ovs_queues(host).items()
    assert port == ("dpdk0", 0) and cpu in dpdk.TWO_NODES.cpus_of(1) and node == 1
    checked = json.loads(host.check("nearpath tune check-ovs --json"))
    assert (checked["verdict"], checked["cross_node_queues"]) == ("accepted", 0), checked
    assert json.loads(host.check("nearpath tune plan --dpdk ovs --json"))["changes"] == []
    (process,) = dpdk.workers(host)["processes"]
    assert [(worker["cpus"], worker["node"]) for worker in process["workers"] if worker["role"] == "pmd"] == [
        (str(cpu), 1)
    ]

    host.check("nearpath tune rollback")
    now = host.check("ovs-vsctl get Open_vSwitch . other_config && ovs-vsctl get Interface dpdk0 other_config")
    assert now == before
    assert dpdk.ovs_queues(host) == {("dpdk0", 0): (FAR, 0)}

    # The plan for a NIC has the same as changes, and the memory of the next start.
    host.check(f"nearpath tune plan --dpdk ovs --nic {devices[0]} --json >/root/plan.json")
    host.check("nearpath tune apply /root/plan.json")
    assert [node for _, node in dpdk.ovs_queues(host).values()] == [1]
    assert "dpdk-socket-mem" in host.check("nearpath tune status")
    host.check("nearpath tune rollback")
    now = host.check("ovs-vsctl get Open_vSwitch . other_config && ovs-vsctl get Interface dpdk0 other_config")
    assert now == before


@on_dpdk_host
def test_a_plan_takes_workers_away_from_a_task_that_disturbs_them(host: Host) -> None:
    """A task is bound to the CPU on which EAL would put the worker. Probes go through testpmd all along."""
    dpdk.reserve_hugepages(host)
    devices = [dpdk.pci_address(host, nic) for nic in ("nic1", "nic2")]
    dpdk.bind(host, devices)
    wires = (("red", "west", "10.98.7.1"), ("blue", "east", "10.98.7.2"))
    for name, port, address in wires:
        host.check(
            f"ip netns add {name} && ip link add dev end netns {name} type veth peer name {port}"
            f" && ip -n {name} address add {address}/24 dev end"
            f" && ip -n {name} link set end up && ip link set {port} up"
            f" && ip netns exec {name} ethtool -K end tx off rx off"
        )
    host.start("ip netns exec blue nearpath bench reflect --bind 10.98.7.2 >/dev/null 2>&1")
    host.start(f"taskset -c {FAR} sh -c 'while :; do :; done' >/dev/null 2>&1")
    ports = " ".join(f"-a {device}" for device in devices)
    wires_of = "--vdev=net_af_packet0,iface=west --vdev=net_af_packet1,iface=east"
    options = "--auto-start --stats-period 1000 --total-num-mbufs=8192"
    said = host.check(
        "nearpath bench scenarios --dpdk --address 10.98.7.2 --from red --cycles 1 --block 3s --warm-up 1s --rate 50"
        f" --nic {devices[1]} --json -- dpdk-testpmd {ports} {wires_of} --socket-mem 0,192 -- {options}",
        timeout_s=400,
    )
    report = json.loads(said)
    near = dpdk.TWO_NODES.cpus_of(1)
    assert report["lcores_without_plan"] == f"0@0,1@{FAR}"
    assert report["lcores_with_plan"] == f"0@{near[0]},1@{near[1]}"
    without, with_plan = report["scenarios"]
    assert without["count"] > 0 and with_plan["count"] > 0, report
    # Only vmxnet3 counts them, and it is idle.
    assert (without["imissed"], with_plan["imissed"]) == (0, 0), report
    ((disturbed,), (spared,)) = without["workers"], with_plan["workers"]
    assert (disturbed["cpus"], spared["cpus"]) == (str(FAR), str(near[1]))
    # The task takes half of the CPU.
    assert disturbed["waited_percent"] > 25 > spared["waited_percent"], report
    assert disturbed["involuntary_switches_per_s"] > 2 * spared["involuntary_switches_per_s"], report


@on_dpdk_host
def test_a_worker_whose_cpu_goes_offline_floats(host: Host) -> None:
    """The kernel then lets it run anywhere, which is seen, found, and not planned."""
    dpdk.reserve_hugepages(host)
    gone, kept = dpdk.TWO_NODES.cpus_of(1)
    eal = f"--no-pci --lcores 0@{FAR},1@{gone} --main-lcore 0 --socket-mem 0,192 --vdev=net_null0 --vdev=net_null1"
    testpmd = dpdk.start_testpmd(host, eal, "--total-num-mbufs=8192")
    host.write(f"/sys/devices/system/cpu/cpu{gone}/online", b"0")
    (process,) = dpdk.workers(host)["processes"]
    (worker,) = (worker for worker in process["workers"] if worker["lcore"] == 1)
    status = host.check(f"grep Cpus_allowed_list /proc/{testpmd.pid}/task/{worker['tid']}/status")
    assert worker["cpus"] == status.split()[1] != str(gone)
    found = json.loads(host.check("nearpath diagnose --measure workers --for 2s --json", dpdk.PATIENCE_S))["findings"]
    floating = [finding["title"] for finding in found if finding["check"] == "worker_floating"]
    assert len(floating) == 1 and "lcore 1 floats" in floating[0], found
    plan = json.loads(host.check(f"nearpath tune plan --dpdk testpmd --nic {dpdk.pci_address(host, 'nic1')} --json"))
    assert gone not in [worker["cpu"] for worker in plan["workers"]] and kept in [w["cpu"] for w in plan["workers"]]
    # Once the CPU is back, the thread still floats: the kernel has forgotten where it was.
    host.write(f"/sys/devices/system/cpu/cpu{gone}/online", b"1")
    (process,) = dpdk.workers(host)["processes"]
    assert [w["cpus"] for w in process["workers"] if w["lcore"] == 1] != [str(gone)]
    dpdk.stop_testpmd(host, testpmd)


@lab(kernels=("6.12",), topology=Topology(cores=(2, 2), threads=2, memory_mib=1024), variant="dpdk")
def test_workers_without_idle_time_on_one_core_are_one_finding(host: Host) -> None:
    """Ports that are never empty keep two workers busy: on one core, which is found, and then on two."""
    dpdk.reserve_hugepages(host)
    main, first, sibling, other = 0, 2, 3, 4
    ports = "--no-pci --vdev=net_null0 --vdev=net_null1"
    workers = {}
    for name, second in (("shared", sibling), ("alone", other)):
        eal = f"--lcores 0@{main},1@{first},2@{second} --main-lcore 0 --socket-mem 192,0 {ports}"
        testpmd = dpdk.start_testpmd(host, eal, f"--total-num-mbufs=8192 --nb-cores=2 --record-core-cycles {dpdk.SLOW}")
        command = "nearpath diagnose --measure workers --for 3s --json"
        findings = json.loads(host.check(command, dpdk.PATIENCE_S))["findings"]
        symptoms = {of["check"]: [symptom["check"] for symptom in of.get("symptoms", ())] for of in findings}
        workers[name] = {check: of for check, of in symptoms.items() if check in ("worker_smt", "worker_saturated")}
        dpdk.stop_testpmd(host, testpmd)
    assert workers == {"shared": {"worker_smt": ["worker_saturated"]}, "alone": {"worker_saturated": []}}, workers
