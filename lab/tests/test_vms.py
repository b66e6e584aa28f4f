"""`nearpath show vms` of a virtual machine in a virtual host, compared with ps."""

import json
from typing import Any

from lab import Host
from lab.fixtures import lab, representative
from lab.vms import TAP, TinyVm, start_vm

from .hosts import IGB, TWO_NODES


def shown(host: Host, *options: str) -> dict[str, Any]:
    """The document of `show vms`."""
    document: dict[str, Any] = json.loads(host.check(["nearpath", "show", "vms", "--json", *options]))
    return document


def the_vm(document: dict[str, Any], vm: TinyVm) -> dict[str, Any]:
    """The only one, which is this."""
    (one,) = document["vms"]
    assert one["pid"] == vm.pid, document
    found: dict[str, Any] = one
    return found


@representative
@lab(topology=TWO_NODES, nics=IGB)
def test_a_vm_has_its_threads_and_taps(host: Host) -> None:
    assert shown(host)["vms"] == []
    vm = start_vm(host, "-c", "2")
    lines = [line.split(None, 2) for line in host.check(["ps", "-eLo", "pid,tid,comm"]).splitlines()[1:]]
    named = [(int(pid), int(tid), comm) for pid, tid, comm in lines]
    one = the_vm(shown(host), vm)
    ((number, thread),) = [(vcpu["number"], vcpu["thread"]) for vcpu in one["vcpus"]]
    assert (number, thread["cpus"], thread["nodes"]) == (0, "2", [1])
    assert (vm.pid, thread["tid"], "CPU 0/KVM") in named
    # A process of the kernel before 6.4, then a thread.
    ((worker,), workers) = one["vhost_workers"], [(pid, tid) for pid, tid, comm in named if comm == f"vhost-{vm.pid}"]
    assert [(worker["pid"], worker["tid"])] == workers
    old = host.machine.kernel in ("5.10", "6.1")
    assert (worker["pid"] == worker["tid"]) == old, worker
    assert one["taps"] == [{"name": TAP, "kind": "tap", "queues": 1}]
    assert (one["vhost_net"], one["machines"], one["eventfds"]) == (1, 1, 2)
    # KVM's own thread is one of the process since 6.13, and in stable kernels.
    assert [t["tid"] for t in one["emulator"] if not t["comm"].startswith("kvm-nx-lpage")] == [vm.pid]
    assert sum(one["memory"].values()) >= 4 << 20, "the guest's memory is populated"
    host.check(f"taskset -p -c 1 {worker['tid']}")
    (worker,) = the_vm(shown(host), vm)["vhost_workers"]
    assert (worker["cpus"], worker["nodes"]) == ("1", [0])
    # The same from a snapshot, but for what changes all the time.
    host.check("nearpath snapshot -o /tmp/s.tar.zst")
    saved = the_vm(shown(host, "--snapshot", "/tmp/s.tar.zst"), vm)
    assert [t["cpus"] for t in saved["vhost_workers"]] == ["1"]
    assert saved["taps"] == one["taps"]
    text = host.check("nearpath show vms")
    assert text.startswith("1 virtual machine, 1 vCPU, 1 vhost worker\n"), text
    vm.end()
    assert shown(host)["vms"] == []


@lab(topology=TWO_NODES, nics=IGB)
def test_a_vcpu_without_a_name_is_found(host: Host) -> None:
    vm = start_vm(host, "-n", "anything")
    one = the_vm(shown(host), vm)
    ((thread,), threads) = [v["thread"] for v in one["vcpus"]], host.check(["ls", f"/proc/{vm.pid}/task"]).split()
    assert str(thread["tid"]) in threads and thread["tid"] != vm.pid
    assert thread["comm"] == "anything"


@lab(topology=TWO_NODES, nics=IGB)
def test_a_vhost_worker_on_its_vcpus_cpu_is_found_moved_and_put_back(host: Host) -> None:
    # Its memory is on their node.
    vm = start_vm(host, "-c", "2", before="taskset -c 2-3")
    (worker,) = the_vm(shown(host), vm)["vhost_workers"]
    host.check(f"taskset -p -c 2 {worker['tid']} && taskset -a -p -c 3 {vm.pid} && taskset -p -c 2 {worker['tid']}")
    (vcpu,) = the_vm(shown(host), vm)["vcpus"]
    host.check(f"taskset -p -c 2 {vcpu['thread']['tid']}")

    def cpus() -> dict[int, str]:
        one = the_vm(shown(host), vm)
        threads = [*one["vhost_workers"], *one["emulator"], *(v["thread"] for v in one["vcpus"])]
        return {thread["tid"]: thread["cpus"] for thread in threads}

    before = cpus()
    diagnosis = json.loads(host.run(["nearpath", "diagnose", "--for", "1s", "--json"]).out)
    titles = [finding["title"] for finding in diagnosis["findings"] if finding["check"] == "vm_vhost"]
    assert titles == [f"tinyvm ({vm.pid}): vhost threads may run on CPUs of its vCPUs"], titles
    plan = json.loads(host.check(["nearpath", "tune", "plan", "--json"]))
    changes = [change for change in plan["changes"] if change["finding"] == "vm_vhost"]
    assert [(change["before"], change["after"]) for change in changes] == [("2", "3")], changes
    host.write("/tmp/plan", json.dumps({**plan, "changes": changes}).encode())
    host.check(["nearpath", "tune", "apply", "/tmp/plan"])
    assert cpus() == {**before, worker["tid"]: "3"}, "the worker alone is moved"
    host.check(["nearpath", "tune", "rollback"])
    assert cpus() == before
    # Parameters of the modules: what the administrator sets is found, and found no more when it is as it was.
    parameter = "/sys/module/kvm/parameters/halt_poll_ns"
    default = host.read(parameter)
    for value, count in ((b"5000000", 1), (default, 0)):
        host.write(parameter, value)
        found = json.loads(host.run(["nearpath", "diagnose", "--for", "1s", "--json"]).out)
        titles = [finding["title"] for finding in found["findings"] if finding["check"] == "vm_halt_polling"]
        assert titles == ["vCPUs poll for up to 5.00ms before they sleep"][:count], titles
        unknown = [note for note in found["not_checked"] if note["check"] in ("vm_halt_polling", "vm_zero_copy")]
        assert unknown == [], unknown
        if count:
            # For information, nothing is planned; as a warning it is, and it is undone to the byte.
            host.write("/tmp/found", json.dumps(found).encode())
            assert polling(host) == []
            for finding in found["findings"]:
                finding["severity"] = "warning"
            host.write("/tmp/found", json.dumps(found).encode())
            (change,) = polling(host)
            assert (change["before"], change["after"]) == ("5000000", "200000"), change
            plan = json.loads(host.check(["nearpath", "tune", "plan", "--json"]))
            host.write("/tmp/plan", json.dumps({**plan, "changes": [change]}).encode())
            host.check(["nearpath", "tune", "apply", "/tmp/plan"])
            assert host.read(parameter) == b"200000\n"
            host.check(["nearpath", "tune", "rollback"])
            assert host.read(parameter) == b"5000000\n"


@lab(topology=TWO_NODES, nics=IGB)
def test_vcpus_on_one_cpu_and_off_their_memory_are_found(host: Host) -> None:
    # The guest's memory is on node 1, where it was started.
    vm = start_vm(host, "-c", "2", "-c", "2", queues=2, before="taskset -c 2-3")
    threads = [vcpu["thread"]["tid"] for vcpu in the_vm(shown(host), vm)["vcpus"]]

    def found() -> list[str]:
        findings = json.loads(host.check("nearpath diagnose --measure tcp --for 1s --json"))["findings"]
        return [finding["title"] for finding in findings if finding["check"] == "vm_vcpus"]

    assert found() == ["several vCPUs are pinned to the same CPU: CPU 2"]
    host.check(f"taskset -p -c 3 {threads[1]}")
    assert found() == []
    host.check(f"taskset -p -c 0 {threads[0]} && taskset -p -c 1 {threads[1]}")
    (off,) = found()
    assert f"tinyvm ({vm.pid})" in off and "node" in off, off
    host.check(f"taskset -p -c 1-2 {threads[0]}")
    assert [title for title in found() if "may run on several nodes" in title]


def polling(host: Host) -> list[dict[str, Any]]:
    """The changes of halt polling that are planned for the findings in /tmp/found."""
    plan = json.loads(host.check(["nearpath", "tune", "plan", "--findings", "/tmp/found", "--json"]))
    return [change for change in plan["changes"] if change["kind"] == "halt_poll_ns"]
