/* SPDX-License-Identifier: GPL-2.0-only */
/* Structures of the kernel's modules tun, tap, vhost and kvm: the members that are read. */
#ifndef NEARPATH_VM_KERNEL_H
#define NEARPATH_VM_KERNEL_H

#include "vmlinux.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct msghdr {
	void *msg_control;
};

struct socket {
	int type;
};

/* A queue of a tap, and of a macvtap. */
struct tun_struct {
	struct net_device *dev;
};

struct tun_file {
	struct socket socket;
	struct tun_struct *tun;
	u16 queue_index;
};

struct tap_dev {
	struct net_device *dev;
};

struct tap_queue {
	struct socket sock;
	struct tap_dev *tap;
	u16 queue_index;
};

struct eventfd_ctx;

struct wait_queue_entry {
	unsigned int flags;
};

struct vhost_vring_call {
	struct eventfd_ctx *ctx;
};

struct vhost_virtqueue {
	struct vhost_vring_call call_ctx;
	void *private_data;
};

struct rcuwait {
	struct task_struct *task;
};

struct kvm_queued_interrupt {
	bool injected;
	u8 nr;
};

struct kvm_vcpu_arch {
	struct kvm_queued_interrupt interrupt;
	u32 mp_state;
};

struct kvm;

struct kvm_vcpu {
	struct kvm *kvm;
	int vcpu_id;
	int mode;
	struct rcuwait wait;
	struct kvm_vcpu_arch arch;
};

struct kvm_lapic {
	struct kvm_vcpu *vcpu;
	bool apicv_active;
};

#pragma clang attribute pop

#endif
