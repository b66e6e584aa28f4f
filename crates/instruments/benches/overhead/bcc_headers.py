"""Loads programs with BCC on a host without kernel headers.

BCC requires them, although the programs of the peers read no kernel structures, only addresses. So it gets the few
definitions that its own headers need, and no package has to be installed for the running kernel.
"""

import os
import tempfile
from pathlib import Path

from bcc import BPF

HEADERS = {
    "linux/kconfig.h": "#define CONFIG_BPF_SYSCALL 1",
    "linux/version.h": """
        #define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
        #define LINUX_VERSION_CODE KERNEL_VERSION(5, 10, 0)
    """,
    "linux/types.h": """
        typedef unsigned char __u8, u8;
        typedef unsigned short __u16, u16, __be16, __sum16;
        typedef unsigned int __u32, u32, __be32, __wsum;
        typedef unsigned long long __u64, u64, __be64;
        typedef __u64 __aligned_u64 __attribute__((aligned(8)));
        typedef signed char __s8, s8;
        typedef short __s16, s16;
        typedef int __s32, s32;
        typedef long long __s64, s64;
        typedef unsigned long size_t, uintptr_t;
        typedef _Bool bool;
        enum { false, true };
        #define NULL ((void *)0)
        /* x86-64, for kprobes */
        struct pt_regs {
            unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
            unsigned long orig_ax, ip, cs, flags, sp, ss;
        };
    """,
    "linux/bpf_common.h": Path("/usr/include/linux/bpf_common.h").read_text(),
    "linux/log2.h": "",
    "asm/page.h": "",
    "uapi/linux/bpf.h": "",
    "uapi/linux/if_packet.h": "",
}


def load(text: str) -> BPF:
    """Compiles and attaches programs."""
    with tempfile.TemporaryDirectory() as folder:
        for name, contents in HEADERS.items():
            header = Path(folder, "include", name)
            header.parent.mkdir(parents=True, exist_ok=True)
            header.write_text(f"#pragma once\n{contents}")
        os.environ["BCC_KERNEL_SOURCE"] = folder
        return BPF(text=text)
