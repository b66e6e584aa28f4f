"""The packages of `make package`, in clean Debian releases without a compiler: installed, run, removed."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.chroots import Chroot
from lab.distribution import Unavailable
from lab.fixtures import kernel
from lab.payload import PROJECT

FOLDER = PROJECT / "target/package"

# The oldest has glibc 2.31, and its kernel (5.10) is the oldest that nearpath supports.
SUITES = ("bullseye", "bookworm", "trixie")

UNITS = ("nearpath-boot.service", "nearpath-watch.service")

LIMIT_BYTES = 20_000_000

pytestmark = kernel


def package(pattern: str) -> Path:
    found = sorted(FOLDER.glob(pattern))
    if not found:
        pytest.skip("the packages are not built: make package")
    return found[-1]


@pytest.fixture(params=SUITES)
def chroot(request: pytest.FixtureRequest) -> Iterator[Chroot]:
    package("*.deb")
    try:
        entered = Chroot.enter(request.param)
        chroot = entered.__enter__()
    except Unavailable as reason:
        pytest.skip(f"no chroot of {request.param}: {reason}")
    try:
        yield chroot
    finally:
        entered.__exit__(None, None, None)


def files(chroot: Chroot) -> set[str]:
    """All files but those that package managers and programs write for themselves."""
    own = ["/proc", "/sys", "/dev", "/run", "/tmp", "/var/lib/dpkg", "/var/lib/rpm", "/var/log", "/var/cache", "/root"]
    left_out = " -o ".join(f"-path {folder}" for folder in own)
    return set(chroot.check(rf"find / \( {left_out} \) -prune -o -print").splitlines())


def runs(chroot: Chroot) -> None:
    """What is installed works: the program, its manual, its completions, its units."""
    assert chroot.run("command -v cc gcc clang").status != 0, "there is a compiler"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=True)
    version = chroot.check("nearpath --version")
    assert commit.stdout.strip() in version and "profile:  dist" in version, version
    chroot.check("nearpath show --json")
    measured = chroot.run("nearpath diagnose --for 1s")
    assert measured.status == 0, measured
    # Names are looked up without the modules of the chroot's C library.
    chroot.check("sed -i 's/^hosts:.*/hosts: mymachines resolve files/' /etc/nsswitch.conf")
    chroot.check("echo 127.0.0.1 near >>/etc/hosts")
    answered = chroot.check(
        "nearpath bench reflect --for 4s >/dev/null & "
        "until ss -Hlun | grep -q :6327; do sleep 0.05; done; "
        "nearpath bench latency near --for 200ms --warm-up 100ms; wait"
    )
    assert "P99" in answered, answered
    for page in ("nearpath", "nearpath-diagnose", "nearpath-tune-plan"):
        assert chroot.check(f"man -w {page}").strip().endswith(f"{page}.1.gz")
    assert "EXPERT OPTIONS" in chroot.check("man nearpath-measure-stages")
    completed = chroot.check(
        ". /usr/share/bash-completion/bash_completion; _completion_loader nearpath || [ $? = 124 ]; "
        "COMP_WORDS=(nearpath diag); COMP_CWORD=1; _nearpath nearpath diag nearpath; echo ${COMPREPLY[@]}"
    )
    assert completed.split() == ["diagnose"], completed
    for unit in UNITS:
        verified = chroot.run(f"systemd-analyze verify /usr/lib/systemd/system/{unit}")
        # Older releases verify units only where a systemd runs.
        if "Cannot determine cgroup" not in verified.err:
            assert verified.status == 0 and unit not in verified.err, verified
        # `is-enabled` says it by its status.
        assert chroot.run(f"systemctl --root=/ is-enabled {unit}").out.strip() == "disabled"


def test_the_deb_is_installed_runs_and_is_removed(chroot: Chroot) -> None:
    chroot.copy(package("*.deb"), "/nearpath.deb")
    chroot.check("touch /etc/hosts")
    before = files(chroot)
    chroot.check("dpkg -i /nearpath.deb")
    installed = files(chroot) - before
    assert "/usr/bin/nearpath" in installed
    runs(chroot)
    chroot.check("mkdir -p /var/lib/nearpath; touch /var/lib/nearpath/journal.jsonl")
    chroot.check("dpkg --remove nearpath")
    left = files(chroot) - before
    assert left == {"/var/lib/nearpath", "/var/lib/nearpath/journal.jsonl"}, "the journal stays until purged"
    chroot.check("dpkg --purge nearpath")
    assert files(chroot) - before == set()


def test_the_tarball_runs_where_it_is_unpacked(chroot: Chroot) -> None:
    chroot.copy(package("*.tar.xz"), "/nearpath.tar.xz")
    # xz is not in every chroot, but on the machine that unpacks.
    tree = f"/proc/{chroot.holder}/root{chroot.root}/opt"
    subprocess.run(["tar", "-xJf", str(package("*.tar.xz")), "-C", tree, "--strip-components=1"], check=True)
    assert chroot.check("/opt/bin/nearpath -V").startswith("nearpath ")
    chroot.check("/opt/bin/nearpath show cpus")


def test_the_binary_is_small_and_needs_no_library() -> None:
    package("*.deb")
    binary = PROJECT / "target/x86_64-unknown-linux-gnu/dist/nearpath"
    assert binary.stat().st_size < LIMIT_BYTES
    headers = subprocess.run(["readelf", "-lWd", str(binary)], capture_output=True, text=True, check=True).stdout
    assert "INTERP" not in headers and "(NEEDED)" not in headers, headers


def test_lintian_has_no_complaint() -> None:
    deb = package("*.deb")
    command = ["lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit=0", str(deb)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("lintian is missing")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_rpm_is_installed_and_removed(tmp_path: Path) -> None:
    rpm = str(package("*.rpm"))

    def run(*words: str) -> str:
        try:
            done = subprocess.run(["rpm", *words], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("rpm is missing")
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "digests OK" in run("-K", "--nosignature", rpm)
    listed = run("-qlp", rpm).splitlines()
    assert "/usr/bin/nearpath" in listed and "/usr/share/zsh/site-functions/_nearpath" in listed
    assert not re.search(r"lib(c|elf|z)\.so", run("-qRp", rpm))
    # Dependencies and scripts are of the distribution's; here are only the files.
    into = ["--root", str(tmp_path), "--nodeps", "--noscripts"]
    run(*into, "-i", rpm)
    binary = tmp_path / "usr/bin/nearpath"
    version = subprocess.run([str(binary), "-V"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("nearpath ")
    run(*into, "-e", "nearpath")
    assert not [path for path in listed if (tmp_path / path.lstrip("/")).is_file()]
