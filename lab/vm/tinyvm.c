/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest virtual machine that receives packets as others do, with KVM and vhost-net:
 *
 *   tap -> vhost worker -> used ring -> eventfd -> irqfd -> LAPIC -> vCPU thread -> guest's handler
 *
 * and, with -e, answers them:
 *
 *   guest's kick -> ioeventfd -> vhost worker -> tap
 *
 * or has a NIC of its own, an 82574 (e1000e) that is passed through by VFIO, whose driver the guest is:
 *
 *   NIC's MSI -> vfio-pci -> eventfd -> irqfd -> LAPIC -> vCPU thread -> guest's handler
 *
 *   tinyvm [-c CPU]... [-e] [-n NAME] [-p] [-q N] TAP|vfio:ADDRESS
 *
 * TAP is a tap, or the device of a macvtap (/dev/tap7); ADDRESS is that of a PCI device that vfio-pci has. With -q it has
 * N queues, each with a vCPU and a vhost device of its own. Each vCPU has the same guest, some 400 bytes of assembler, in memory of its own (BANK bytes), which its
 * page tables map from 0 on.
 *
 * The guest halts. On each interrupt of its NIC it takes the packets from the used ring, notes for each the TSC at the
 * start of the handler, and gives the buffers back. The guest's TSC is the host's (offset 0, since 5.16), so that the
 * notes can be compared with a trace whose clock is x86-tsc. With -e it returns each UDP datagram to its sender, and
 * notes the TSC of each kick of vhost. With -p it never halts, so that an interrupt finds its vCPU running. -c pins
 * the next vCPU; -n names their threads, instead of QEMU's "CPU 0/KVM".
 *
 * Prints "ready" once the guest runs. Ends by SIGTERM or SIGINT, and then prints one line of JSON: for each vCPU what
 * its guest counted, and its notes of the last packets and kicks.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/kvm.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <linux/vhost.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

/* A vCPU's memory, by the guest's address, and by its place in the bank. Used by the assembler below, too. */
#define STR_(x) #x
#define STR(x) STR_(x)
#define PML4 0x1000
#define PDPT 0x2000
#define PD 0x3000
#define GDT 0x4000
#define IDT 0x5000
#define TSS 0x6000
#define STACK 0x9000
#define IRQS 0x9000     /* u64: interrupts handled */
#define PACKETS 0x9008  /* u64: packets taken */
#define HALTS 0x9010    /* u64: times woken up from hlt */
#define KICKS 0x9018    /* u64: times it has notified vhost */
#define READY 0x9020    /* u64: 1 once it runs */
#define LAST 0x9028     /* u16: index up to which it has taken packets */
#define ECHOES 0x9030   /* u64: 1 if it answers */
#define SENT 0x9038     /* u64: answers in the ring */
#define FULL 0x9040     /* u64: answers that the ring had no room for */
#define TX_KICKS 0x9048 /* u64: times it has notified vhost of them */
#define KICKED 0x9050   /* u16: index of which it has notified vhost, or which vhost polls for */
#define CODE 0x10000
#define DESC 0x20000
#define AVAIL 0x21000
#define USED 0x22000
#define TX_DESC 0x23000
#define TX_AVAIL 0x24000
#define TX_USED 0x25000
#define RING 0x26000    /* of the NIC that is passed through: SIZE descriptors of 16 bytes */
#define TX_RING 0x27000
#define SIZE 256        /* of the rings */
#define NOTES 0x80000   /* NOTES_N notes of 32 bytes: tsc, interrupt, descriptor and length, start of the payload */
#define NOTES_N 8192
#define KICK_NOTES 0xc0000 /* NOTES_N TSCs */
#define BUFFERS 0x200000
#define BUFFER 2048
#define TX_BUFFERS 0x300000
#define BANK 0x400000
#define REGISTERS 0x400000 /* of the NIC that is passed through: the guest's address, and the virtual machine's */
#define PORT 0x5000     /* writing to it notifies vhost of buffers, to TX_PORT of answers; 4 more for each queue */
#define TX_PORT 0x5002
#define PORT_OF 0x9058  /* u16: the port of this vCPU's queue */
#define VECTOR 0x41
#define GSI 24
#define PAYLOAD 54      /* virtio_net_hdr 12, Ethernet 14, IPv4 20, UDP 8 */
#define NIC_PAYLOAD 42  /* Ethernet 14, IPv4 20, UDP 8 */
#define QUEUES_MAX 8

/* Registers of the 82574 (Intel's datasheet, 10.2), and their bits. */
#define NIC_CTRL 0x0
#define CTRL_SLU (1u << 6)
#define CTRL_RST (1u << 26)
#define ICR 0xc0
#define IMS 0xd0
#define IMC 0xd8
#define IMS_RECEIVED (1u << 7)
#define RCTL 0x100
#define RCTL_ALL (1u << 1 | 1u << 3 | 1u << 4 | 1u << 15 | 1u << 26) /* enabled, of every address, without their checksum */
#define RDBAL 0x2800
#define RDBAH 0x2804
#define RDLEN 0x2808
#define RDH 0x2810
#define RDT 0x2818
#define TCTL 0x400
#define TCTL_EN (1u << 1 | 1u << 3) /* enabled, short packets padded */
#define TDBAL 0x3800
#define TDBAH 0x3804
#define TDLEN 0x3808
#define TDH 0x3810
#define TDT 0x3818

#define A(x) STR(x)
/* Of the handlers of NICs: the time is in %r8. */
#define BEGIN \
    "  push %rax\n push %rbx\n push %rcx\n push %rdx\n push %rsi\n push %rdi\n push %r8\n push %r9\n" \
    "  rdtsc\n shl $32, %rdx\n or %rax, %rdx\n mov %rdx, %r8\n" \
    "  incq " A(IRQS) "\n"
#define END \
    "  mov $0x80b, %ecx\n xor %eax, %eax\n xor %edx, %edx\n wrmsr\n" /* EOI */ \
    "  pop %r9\n pop %r8\n pop %rdi\n pop %rsi\n pop %rdx\n pop %rcx\n pop %rbx\n pop %rax\n iretq\n"
__asm__(
    ".pushsection .rodata\n .balign 16\n"
    "guest_start:\n"
    "  mov $0x80f, %ecx\n mov $0x1ff, %eax\n xor %edx, %edx\n wrmsr\n" /* x2APIC: spurious vector, enabled */
    "  movq $1, " A(READY) "\n"
    "guest_loop:\n"
    "  sti\n hlt\n"
    "  incq " A(HALTS) "\n"
    "  jmp guest_loop\n"
    "guest_poller:\n"                    /* never halts: its interrupts find the vCPU running */
    "  mov $0x80f, %ecx\n mov $0x1ff, %eax\n xor %edx, %edx\n wrmsr\n"
    "  movq $1, " A(READY) "\n sti\n"
    "1: pause\n jmp 1b\n"
    "guest_handler:\n"
    BEGIN
    "  movzwl " A(LAST) ", %esi\n"
    "2: cmpw " A(USED) "+2, %si\n je 3f\n"
    "  movzbl %sil, %edi\n"                              /* SIZE is 256 */
    "  mov " A(USED) "+4(,%rdi,8), %rbx\n"               /* id, and length in the upper half */
    "  movzwl " A(AVAIL) "+2, %ecx\n movzbl %cl, %edi\n"
    "  mov %bx, " A(AVAIL) "+4(,%rdi,2)\n"
    "  mov " A(PACKETS) ", %r9\n and $(" A(NOTES_N) "-1), %r9d\n shl $5, %r9d\n"
    "  mov %r8, " A(NOTES) "(%r9)\n"
    "  mov " A(IRQS) ", %rax\n mov %rax, " A(NOTES) "+8(%r9)\n"
    "  mov %rbx, " A(NOTES) "+16(%r9)\n"
    "  movzwl %bx, %eax\n shl $11, %eax\n mov " A(BUFFERS) "+" A(PAYLOAD) "(%rax), %rax\n"
    "  mov %rax, " A(NOTES) "+24(%r9)\n"
    "  incq " A(PACKETS) "\n"
    "  testb $1, " A(ECHOES) "\n jz 5f\n call guest_answer\n"
    "5: inc %ecx\n mov %cx, " A(AVAIL) "+2\n"
    "  inc %esi\n jmp 2b\n"
    "3: mov %si, " A(LAST) "\n mfence\n"
    "  testw $1, " A(USED) "\n jnz 4f\n"                 /* VRING_USED_F_NO_NOTIFY */
    "  movzwl " A(PORT_OF) ", %edx\n xor %eax, %eax\n out %ax, %dx\n incq " A(KICKS) "\n"
    "4: movzwl " A(TX_AVAIL) "+2, %ecx\n cmpw %cx, " A(KICKED) "\n je 6f\n"
    "  mov %cx, " A(KICKED) "\n"
    "  testw $1, " A(TX_USED) "\n jnz 6f\n"
    "  mov " A(TX_KICKS) ", %rdi\n and $(" A(NOTES_N) "-1), %edi\n incq " A(TX_KICKS) "\n"
    "  rdtsc\n shl $32, %rdx\n or %rdx, %rax\n mov %rax, " A(KICK_NOTES) "(,%rdi,8)\n"
    "  movzwl " A(PORT_OF) ", %edx\n add $2, %edx\n xor %eax, %eax\n out %ax, %dx\n"
    "6:\n"
    END
    /* The handler of the NIC that is passed through: LAST is the next descriptor of its ring. */
    "guest_driver:\n"
    BEGIN
    "  mov " A(REGISTERS) "+" A(ICR) ", %eax\n"          /* reading clears it */
    "  movzwl " A(LAST) ", %esi\n"
    "2: mov %esi, %edi\n shl $4, %edi\n testb $1, " A(RING) "+12(%edi)\n jz 3f\n"
    "  movzwl " A(RING) "+8(%edi), %ebx\n shl $32, %rbx\n"
    "  mov " A(PACKETS) ", %r9\n and $(" A(NOTES_N) "-1), %r9d\n shl $5, %r9d\n"
    "  mov %r8, " A(NOTES) "(%r9)\n"
    "  mov " A(IRQS) ", %rax\n mov %rax, " A(NOTES) "+8(%r9)\n"
    "  mov %rbx, " A(NOTES) "+16(%r9)\n"
    "  mov %esi, %eax\n shl $11, %eax\n mov " A(BUFFERS) "+" A(NIC_PAYLOAD) "(%eax), %rax\n"
    "  mov %rax, " A(NOTES) "+24(%r9)\n"
    "  movb $0, " A(RING) "+12(%edi)\n"
    "  incq " A(PACKETS) "\n"
    "  testb $1, " A(ECHOES) "\n jz 5f\n call guest_reply\n"
    "5: mov %esi, " A(REGISTERS) "+" A(RDT) "\n"          /* this one is free again */
    "  inc %esi\n and $(" A(SIZE) "-1), %esi\n jmp 2b\n"
    "3: mov %si, " A(LAST) "\n"
    END
    /* Returns the datagram in buffer %esi, with its length in the upper half of %rbx, to its sender by the NIC. */
    "guest_reply:\n"
    "  push %rsi\n push %rdi\n"
    "  shl $11, %esi\n add $" A(BUFFERS) ", %esi\n"
    "  cmpw $0x0008, 12(%rsi)\n jne 9f\n cmpb $17, 23(%rsi)\n jne 9f\n" /* IPv4, UDP */
    "  mov " A(SENT) ", %edx\n and $(" A(SIZE) "-1), %edx\n"
    "  mov %edx, %edi\n shl $11, %edi\n add $" A(TX_BUFFERS) ", %edi\n shl $4, %edx\n"
    "  mov %rbx, %rcx\n shr $32, %rcx\n"
    "  mov %rdi, " A(TX_RING) "(%rdx)\n mov %ecx, " A(TX_RING) "+8(%rdx)\n"
    "  movl $0, " A(TX_RING) "+12(%rdx)\n movb $3, " A(TX_RING) "+11(%rdx)\n" /* the end of the packet; its checksum */
    "  push %rdi\n rep movsb\n pop %rdi\n"
    "  mov (%rdi), %eax\n mov 6(%rdi), %ecx\n mov %ecx, (%rdi)\n mov %eax, 6(%rdi)\n"        /* Ethernet */
    "  mov 4(%rdi), %ax\n mov 10(%rdi), %cx\n mov %cx, 4(%rdi)\n mov %ax, 10(%rdi)\n"
    "  mov 26(%rdi), %eax\n mov 30(%rdi), %ecx\n mov %ecx, 26(%rdi)\n mov %eax, 30(%rdi)\n"  /* IPv4 */
    "  mov 34(%rdi), %ax\n mov 36(%rdi), %cx\n mov %cx, 34(%rdi)\n mov %ax, 36(%rdi)\n"      /* ports */
    "  incq " A(SENT) "\n mov " A(SENT) ", %eax\n and $(" A(SIZE) "-1), %eax\n"
    "  mov %eax, " A(REGISTERS) "+" A(TDT) "\n"
    "9: pop %rdi\n pop %rsi\n ret\n"
    /* Returns the datagram in buffer %bx, with its length in the upper half of %rbx, to its sender. */
    "guest_answer:\n"
    "  push %rcx\n push %rsi\n"
    "  movzwl %bx, %esi\n shl $11, %esi\n add $" A(BUFFERS) ", %esi\n"
    "  cmpw $0x0008, 24(%rsi)\n jne 9f\n cmpb $17, 35(%rsi)\n jne 9f\n" /* IPv4, UDP */
    "  movzwl " A(TX_AVAIL) "+2, %edx\n"
    "  mov %edx, %eax\n sub " A(TX_USED) "+2, %ax\n cmp $" A(SIZE) ", %ax\n jae 8f\n"
    "  movzbl %dl, %edi\n mov %edi, %eax\n shl $11, %edi\n add $" A(TX_BUFFERS) ", %edi\n"
    "  mov %rbx, %rcx\n shr $32, %rcx\n shl $4, %eax\n mov %ecx, " A(TX_DESC) "+8(%rax)\n"
    "  push %rdi\n rep movsb\n pop %rdi\n"
    "  andb $1, (%rdi)\n movw $0, 10(%rdi)\n"                                     /* a checksum to complete: the same */
    "  mov 12(%rdi), %eax\n mov 18(%rdi), %ecx\n mov %ecx, 12(%rdi)\n mov %eax, 18(%rdi)\n" /* Ethernet */
    "  mov 16(%rdi), %ax\n mov 22(%rdi), %cx\n mov %cx, 16(%rdi)\n mov %ax, 22(%rdi)\n"
    "  mov 38(%rdi), %eax\n mov 42(%rdi), %ecx\n mov %ecx, 38(%rdi)\n mov %eax, 42(%rdi)\n" /* IPv4 */
    "  mov 46(%rdi), %ax\n mov 48(%rdi), %cx\n mov %cx, 46(%rdi)\n mov %ax, 48(%rdi)\n"     /* ports */
    "  inc %edx\n mov %dx, " A(TX_AVAIL) "+2\n incq " A(SENT) "\n jmp 9f\n"
    "8: incq " A(FULL) "\n"
    "9: pop %rsi\n pop %rcx\n ret\n"
    "guest_spurious: iretq\n"
    "guest_end:\n .popsection\n");
extern const uint8_t guest_start[], guest_poller[], guest_handler[], guest_driver[], guest_spurious[], guest_end[];

static uint8_t *memory; /* the banks */
static int vm_fd, vcpu_fds[QUEUES_MAX], vcpu_cpus[QUEUES_MAX], queues = 1, echoes, polls;
static const char *vcpu_name, *passed_through; /* a device's address */
static size_t run_size;

static int must(int result, const char *what)
{
    if (result < 0)
        err(1, "%s", what);
    return result;
}
#define DO(fd, request, argument) must(ioctl(fd, request, argument), #request)

static uint8_t *bank(int vcpu) { return memory + (size_t)vcpu * BANK; }
static uint64_t word(int vcpu, uint64_t at) { return *(volatile uint64_t *)(bank(vcpu) + at); }

static void gate(int vcpu, int vector, const uint8_t *handler)
{
    uint64_t to = CODE + (handler - guest_start), *entry = (uint64_t *)(bank(vcpu) + IDT + 16 * vector);
    entry[0] = (to & 0xffff) | 8 << 16 | 0x8e00ULL << 32 | (to >> 16 & 0xffff) << 48;
    entry[1] = to >> 32;
}

static void make_guest(int vcpu)
{
    uint8_t *own = bank(vcpu);
    uint64_t base = own - memory;
    *(uint64_t *)(own + PML4) = (base + PDPT) | 3;
    *(uint64_t *)(own + PDPT) = (base + PD) | 3;
    for (uint64_t i = 0; i < BANK >> 21; i++)
        ((uint64_t *)(own + PD))[i] = (base + (i << 21)) | 0x83; /* 2 MiB each */
    ((uint64_t *)(own + GDT))[1] = 0x00af9b000000ffff;
    ((uint64_t *)(own + GDT))[2] = 0x00cf93000000ffff;
    memcpy(own + CODE, guest_start, guest_end - guest_start);
    for (int vector = 32; vector < 256; vector++)
        gate(vcpu, vector, guest_spurious);
    gate(vcpu, VECTOR, passed_through ? guest_driver : guest_handler);
    if (passed_through) /* not cached */
        ((uint64_t *)(own + PD))[REGISTERS >> 21] = REGISTERS | 0x93;
    *(uint64_t *)(own + ECHOES) = echoes;
    *(uint16_t *)(own + PORT_OF) = PORT + 4 * vcpu;

    struct vring_desc *desc = (void *)(own + DESC), *tx_desc = (void *)(own + TX_DESC);
    struct vring_avail *avail = (void *)(own + AVAIL), *tx_avail = (void *)(own + TX_AVAIL);
    for (int i = 0; i < SIZE; i++) {
        desc[i] = (struct vring_desc){base + BUFFERS + i * BUFFER, BUFFER, VRING_DESC_F_WRITE, 0};
        tx_desc[i] = (struct vring_desc){base + TX_BUFFERS + i * BUFFER, 0, 0, 0};
        avail->ring[i] = tx_avail->ring[i] = i;
    }
    avail->idx = SIZE;
    tx_avail->flags = VRING_AVAIL_F_NO_INTERRUPT;
}

static void make_vcpu(int kvm, int number)
{
    int fd = vcpu_fds[number] = DO(vm_fd, KVM_CREATE_VCPU, (long)number);
    struct kvm_cpuid2 *cpuid = calloc(1, sizeof *cpuid + 256 * sizeof cpuid->entries[0]);
    cpuid->nent = 256;
    DO(kvm, KVM_GET_SUPPORTED_CPUID, cpuid);
    for (unsigned i = 0; i < cpuid->nent; i++)
        if (cpuid->entries[i].function == 1)
            cpuid->entries[i].ecx |= 1 << 21; /* x2APIC */
    DO(fd, KVM_SET_CPUID2, cpuid);
    free(cpuid);

    struct kvm_sregs s;
    DO(fd, KVM_GET_SREGS, &s);
    struct kvm_segment code = {.limit = ~0u, .selector = 8, .type = 11, .present = 1, .s = 1, .l = 1, .g = 1};
    struct kvm_segment data = {.limit = ~0u, .selector = 16, .type = 3, .present = 1, .s = 1, .db = 1, .g = 1};
    s.cs = code;
    s.ds = s.es = s.fs = s.gs = s.ss = data;
    s.tr = (struct kvm_segment){.base = TSS, .limit = 0x67, .type = 11, .present = 1};
    s.gdt = (struct kvm_dtable){.base = GDT, .limit = 23};
    s.idt = (struct kvm_dtable){.base = IDT, .limit = 4095};
    s.cr0 = 0x80000033; /* PG, NE, ET, MP, PE */
    s.cr3 = (uint64_t)number * BANK + PML4;
    s.cr4 = 0x620; /* PAE, OSFXSR, OSXMMEXCPT */
    s.efer = 0x500; /* LME, LMA */
    s.apic_base = 0xfee00000 | 0x800 | 0x400 | (number ? 0 : 0x100); /* enabled, x2APIC; the first: BSP */
    DO(fd, KVM_SET_SREGS, &s);
    struct kvm_regs r = {.rflags = 2, .rsp = STACK, .rip = CODE + (polls ? guest_poller - guest_start : 0)};
    DO(fd, KVM_SET_REGS, &r);
    struct kvm_mp_state state = {KVM_MP_STATE_RUNNABLE};
    DO(fd, KVM_SET_MP_STATE, &state);

    uint64_t offset = 0; /* the guest's TSC is the host's (5.16 and later) */
    struct kvm_device_attr tsc = {.group = KVM_VCPU_TSC_CTRL, .attr = KVM_VCPU_TSC_OFFSET, .addr = (uintptr_t)&offset};
    if (ioctl(fd, KVM_SET_DEVICE_ATTR, &tsc) < 0)
        warn("the guest's TSC has an offset");
}

static void make_vm(void)
{
    int kvm = must(open("/dev/kvm", O_RDWR | O_CLOEXEC), "/dev/kvm");
    vm_fd = DO(kvm, KVM_CREATE_VM, 0);
    DO(vm_fd, KVM_SET_TSS_ADDR, 0xfffbd000);
    DO(vm_fd, KVM_CREATE_IRQCHIP, 0);
    struct kvm_userspace_memory_region region = {.memory_size = (size_t)queues * BANK,
                                                 .userspace_addr = (uintptr_t)memory};
    DO(vm_fd, KVM_SET_USER_MEMORY_REGION, &region);
    run_size = DO(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
    struct {
        struct kvm_irq_routing head;
        struct kvm_irq_routing_entry entries[QUEUES_MAX];
    } routing = {{.nr = queues}, {{0}}};
    for (int i = 0; i < queues; i++) {
        make_vcpu(kvm, i);
        routing.entries[i] = (struct kvm_irq_routing_entry){
            .gsi = GSI + i, .type = KVM_IRQ_ROUTING_MSI,
            .u.msi = {.address_lo = 0xfee00000 | i << 12, .data = VECTOR}};
    }
    DO(vm_fd, KVM_SET_GSI_ROUTING, &routing);
}

/* A queue of the tap, or of the device of a macvtap. */
static int open_tap(const char *name)
{
    int is_device = name[0] == '/', header = 12;
    const char *path = is_device ? name : "/dev/net/tun";
    int tap = must(open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC), path);
    struct ifreq wanted = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | (queues > 1 ? IFF_MULTI_QUEUE : 0)};
    if (!is_device)
        strncpy(wanted.ifr_name, name, IFNAMSIZ - 1);
    DO(tap, TUNSETIFF, &wanted);
    DO(tap, TUNSETVNETHDRSZ, &header);
    return tap;
}

/* An eventfd that writing to a port of the guest signals. */
static int kick_of(int port)
{
    int kick = must(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    struct kvm_ioeventfd ioeventfd = {.addr = port, .len = 2, .fd = kick, .flags = KVM_IOEVENTFD_FLAG_PIO};
    DO(vm_fd, KVM_IOEVENTFD, &ioeventfd);
    return kick;
}

/* A ring of the vhost device: in the vCPU's bank, from `desc` on, each part on a page. */
static void make_ring(int vhost, unsigned index, uint8_t *desc, int kick, int call, int tap)
{
    struct vhost_vring_state number = {.index = index, .num = SIZE}, base = {.index = index, .num = 0};
    DO(vhost, VHOST_SET_VRING_NUM, &number);
    DO(vhost, VHOST_SET_VRING_BASE, &base);
    struct vhost_vring_addr address = {.index = index,
                                       .desc_user_addr = (uintptr_t)desc,
                                       .avail_user_addr = (uintptr_t)desc + AVAIL - DESC,
                                       .used_user_addr = (uintptr_t)desc + USED - DESC};
    DO(vhost, VHOST_SET_VRING_ADDR, &address);
    struct vhost_vring_file file = {.index = index, .fd = kick};
    DO(vhost, VHOST_SET_VRING_KICK, &file);
    file.fd = call;
    DO(vhost, VHOST_SET_VRING_CALL, &file);
    file.fd = tap;
    DO(vhost, VHOST_NET_SET_BACKEND, &file);
}

/* A queue of the NIC: its rings are vhost's, its interrupt an MSI behind an eventfd. */
static void make_queue(int number, const char *name)
{
    int tap = open_tap(name);
    int call = must(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    struct kvm_irqfd irqfd = {.fd = call, .gsi = GSI + number};
    DO(vm_fd, KVM_IRQFD, &irqfd);

    int vhost = must(open("/dev/vhost-net", O_RDWR | O_CLOEXEC), "/dev/vhost-net");
    DO(vhost, VHOST_SET_OWNER, 0);
    uint64_t features = 1ULL << VIRTIO_F_VERSION_1 | 1ULL << VIRTIO_NET_F_MRG_RXBUF;
    DO(vhost, VHOST_SET_FEATURES, &features);
    struct {
        struct vhost_memory head;
        struct vhost_memory_region region;
    } table = {{.nregions = 1}, {.memory_size = (size_t)queues * BANK, .userspace_addr = (uintptr_t)memory}};
    DO(vhost, VHOST_SET_MEM_TABLE, &table);
    make_ring(vhost, 0, bank(number) + DESC, kick_of(PORT + 4 * number), call, tap);
    if (echoes)
        make_ring(vhost, 1, bank(number) + TX_DESC, kick_of(TX_PORT + 4 * number), -1, tap);
}

/* A register of the NIC that is passed through. */
static uint32_t *registers;
static volatile uint32_t *nic(int offset) { return registers + offset / 4; }

/* Lets the NIC write packets into the guest's memory, whose registers get a place there. */
static void start_nic(size_t size)
{
    struct kvm_userspace_memory_region region = {.slot = 1, .guest_phys_addr = REGISTERS, .memory_size = size,
                                                 .userspace_addr = (uintptr_t)registers};
    DO(vm_fd, KVM_SET_USER_MEMORY_REGION, &region);
    *nic(IMC) = ~0u;
    *nic(NIC_CTRL) |= CTRL_RST;
    for (int i = 0; *nic(NIC_CTRL) & CTRL_RST; i++) {
        if (i > 10000)
            errx(1, "the NIC is not reset");
        usleep(1000);
    }
    *nic(IMC) = ~0u;
    *nic(NIC_CTRL) |= CTRL_SLU;
    uint64_t *ring = (void *)(memory + RING);
    for (int i = 0; i < SIZE; i++)
        ring[2 * i] = BUFFERS + i * BUFFER;
    *nic(RDBAL) = RING;
    *nic(RDBAH) = 0;
    *nic(RDLEN) = SIZE * 16;
    *nic(RDH) = 0;
    *nic(RDT) = SIZE - 1;
    *nic(TDBAL) = TX_RING;
    *nic(TDBAH) = 0;
    *nic(TDLEN) = SIZE * 16;
    *nic(TDH) = *nic(TDT) = 0;
    *nic(TCTL) = TCTL_EN;
    *nic(RCTL) = RCTL_ALL;
    *nic(IMS) = IMS_RECEIVED;
}

/* The NIC with this address of PCI: its memory is the guest's, its interrupt an MSI behind an eventfd. */
static void pass_through(const char *address)
{
    char path[64], link[256];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/iommu_group", address);
    ssize_t length = must(readlink(path, link, sizeof link - 1), path);
    link[length] = 0;
    snprintf(path, sizeof path, "/dev/vfio/%s", strrchr(link, '/') + 1);
    int container = must(open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC), "/dev/vfio/vfio");
    int group = must(open(path, O_RDWR | O_CLOEXEC), path);
    DO(group, VFIO_GROUP_SET_CONTAINER, &container);
    DO(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU);
    struct vfio_iommu_type1_dma_map map = {.argsz = sizeof map, .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
                                           .vaddr = (uintptr_t)memory, .size = BANK};
    DO(container, VFIO_IOMMU_MAP_DMA, &map);
    int device = DO(group, VFIO_GROUP_GET_DEVICE_FD, address);
    struct vfio_region_info config = {.argsz = sizeof config, .index = VFIO_PCI_CONFIG_REGION_INDEX};
    DO(device, VFIO_DEVICE_GET_REGION_INFO, &config);
    uint16_t command = PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE;
    must(pwrite(device, &command, sizeof command, config.offset + PCI_COMMAND), "the PCI command register");
    struct vfio_region_info bar = {.argsz = sizeof bar, .index = VFIO_PCI_BAR0_REGION_INDEX};
    DO(device, VFIO_DEVICE_GET_REGION_INFO, &bar);
    registers = mmap(NULL, bar.size, PROT_READ | PROT_WRITE, MAP_SHARED, device, bar.offset);
    if (registers == MAP_FAILED)
        err(1, "mmap of the NIC's registers");

    int call = must(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    struct kvm_irqfd irqfd = {.fd = call, .gsi = GSI};
    DO(vm_fd, KVM_IRQFD, &irqfd);
    struct {
        struct vfio_irq_set head;
        int eventfd;
    } set = {{.argsz = sizeof set, .flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
              .index = VFIO_PCI_MSI_IRQ_INDEX, .count = 1}, call};
    DO(device, VFIO_DEVICE_SET_IRQS, &set);
    start_nic(bar.size);
}

static void *run_vcpu(void *argument)
{
    int number = (intptr_t)argument, fd = vcpu_fds[number];
    char name[16];
    snprintf(name, sizeof name, "CPU %d/KVM", number);
    prctl(PR_SET_NAME, vcpu_name ? vcpu_name : name);
    if (vcpu_cpus[number] >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(vcpu_cpus[number], &set);
        must(sched_setaffinity(0, sizeof set, &set), "sched_setaffinity");
    }
    struct kvm_run *run = mmap(NULL, run_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (run == MAP_FAILED)
        err(1, "mmap of the vCPU");
    for (;;) {
        if (ioctl(fd, KVM_RUN, 0) < 0) {
            if (errno == EINTR || errno == EAGAIN)
                continue;
            err(1, "KVM_RUN");
        }
        struct kvm_regs r;
        DO(fd, KVM_GET_REGS, &r);
        if (run->exit_reason == KVM_EXIT_IO) /* no ioeventfd for it */
            continue;
        errx(1, "the guest has left KVM: reason %u (%llx) at %llx", run->exit_reason,
             run->exit_reason == KVM_EXIT_FAIL_ENTRY ? run->fail_entry.hardware_entry_failure_reason
                                                     : (unsigned long long)run->internal.suberror, r.rip);
    }
    return NULL;
}

static void report_vcpu(int vcpu)
{
    uint64_t packets = word(vcpu, PACKETS), kicks = word(vcpu, TX_KICKS);
    printf("{\"irqs\":%lu,\"packets\":%lu,\"halts\":%lu,\"kicks\":%lu,\"sent\":%lu,\"full\":%lu,\"tx_kicks\":%lu,"
           "\"notes\":[", word(vcpu, IRQS), packets, word(vcpu, HALTS), word(vcpu, KICKS), word(vcpu, SENT),
           word(vcpu, FULL), kicks);
    for (uint64_t first = packets > NOTES_N ? packets - NOTES_N : 0, i = first; i < packets; i++) {
        uint64_t at = NOTES + 32 * (i % NOTES_N);
        printf("%s{\"tsc\":%lu,\"irq\":%lu,\"length\":%lu,\"payload\":\"%016lx\"}", i == first ? "" : ",",
               word(vcpu, at), word(vcpu, at + 8), word(vcpu, at + 16) >> 32, word(vcpu, at + 24));
    }
    printf("],\"kick_notes\":[");
    for (uint64_t first = kicks > NOTES_N ? kicks - NOTES_N : 0, i = first; i < kicks; i++)
        printf("%s%lu", i == first ? "" : ",", word(vcpu, KICK_NOTES + 8 * (i % NOTES_N)));
    printf("]}");
}

static void report(void)
{
    printf("{\"vcpus\":[");
    for (int i = 0; i < queues; i++) {
        if (i)
            printf(",");
        report_vcpu(i);
    }
    printf("]}\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int option, pinned = 0;
    memset(vcpu_cpus, 0xff, sizeof vcpu_cpus);
    while ((option = getopt(argc, argv, "c:en:pq:")) != -1) {
        if (option == 'c' && pinned < QUEUES_MAX) vcpu_cpus[pinned++] = atoi(optarg);
        else if (option == 'e') echoes = 1;
        else if (option == 'n') vcpu_name = optarg;
        else if (option == 'p') polls = 1;
        else if (option == 'q') queues = atoi(optarg);
        else return 2;
    }
    if (optind + 1 != argc || queues < 1 || queues > QUEUES_MAX)
        errx(2, "usage: tinyvm [-c CPU]... [-e] [-n NAME] [-p] [-q N] TAP|vfio:ADDRESS");
    if (!strncmp(argv[optind], "vfio:", 5))
        passed_through = argv[optind] + 5;
    if (passed_through && queues > 1)
        errx(2, "a device that is passed through has one queue");
    memory = mmap(NULL, (size_t)queues * BANK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        err(1, "mmap");
    sigset_t signals; /* blocked in all threads: KVM_RUN is ended by the end of the process */
    sigfillset(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    for (int i = 0; i < queues; i++)
        make_guest(i);
    make_vm();
    for (int i = 0; !passed_through && i < queues; i++)
        make_queue(i, argv[optind]);

    for (int i = 0; i < queues; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_vcpu, (void *)(intptr_t)i))
            errx(1, "pthread_create");
        while (!word(i, READY)) /* the guest cannot wake us up */
            usleep(1000);
    }
    if (passed_through)
        pass_through(passed_through);
    printf("ready\n");
    fflush(stdout);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigwait(&signals, &option);
    report();
    _exit(0);
}
