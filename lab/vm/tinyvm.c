/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest virtual machine that receives packets as others do, with KVM and vhost-net:
 *
 *   tap -> vhost worker -> used ring -> eventfd -> irqfd -> LAPIC -> vCPU thread -> guest's handler
 *
 *   tinyvm [-c CPU] [-n NAME] [-p] TAP
 *
 * Its guest, some 150 bytes of assembler, halts. On each interrupt of its NIC it takes the packets from the used
 * ring, notes for each the TSC at the start of the handler, and gives the buffers back. The guest's TSC is the
 * host's (offset 0, since 5.16), so that the notes can be compared with a trace whose clock is x86-tsc. With -p it
 * never halts, so that an interrupt finds its vCPU running. -c pins the vCPU; -n names its thread, instead of QEMU's
 * "CPU 0/KVM".
 *
 * Prints "ready" once the guest runs. Ends by SIGTERM or SIGINT, and then prints one line of JSON: what the guest
 * counted, and its notes of the last packets.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/kvm.h>
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

/* The guest's memory, by guest-physical address. Used by the assembler below, too. */
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
#define CODE 0x10000
#define DESC 0x20000
#define AVAIL 0x21000
#define USED 0x22000
#define SIZE 256        /* of the ring */
#define NOTES 0x80000   /* NOTES_N notes of 32 bytes: tsc, interrupt, descriptor and length, start of the payload */
#define NOTES_N 8192
#define BUFFERS 0x200000
#define BUFFER 2048
#define MEMORY 0x400000
#define PORT 0x5000     /* writing to it notifies vhost */
#define VECTOR 0x41
#define GSI 24
#define PAYLOAD 54      /* virtio_net_hdr 12, Ethernet 14, IPv4 20, UDP 8 */

#define A(x) STR(x)
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
    "  push %rax\n push %rbx\n push %rcx\n push %rdx\n push %rsi\n push %rdi\n push %r8\n push %r9\n"
    "  rdtsc\n shl $32, %rdx\n or %rax, %rdx\n mov %rdx, %r8\n"
    "  incq " A(IRQS) "\n"
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
    "  inc %ecx\n mov %cx, " A(AVAIL) "+2\n"
    "  inc %esi\n jmp 2b\n"
    "3: mov %si, " A(LAST) "\n mfence\n"
    "  testw $1, " A(USED) "\n jnz 4f\n"                 /* VRING_USED_F_NO_NOTIFY */
    "  mov $" A(PORT) ", %edx\n xor %eax, %eax\n out %ax, %dx\n incq " A(KICKS) "\n"
    "4: mov $0x80b, %ecx\n xor %eax, %eax\n xor %edx, %edx\n wrmsr\n" /* EOI */
    "  pop %r9\n pop %r8\n pop %rdi\n pop %rsi\n pop %rdx\n pop %rcx\n pop %rbx\n pop %rax\n iretq\n"
    "guest_spurious: iretq\n"
    "guest_end:\n .popsection\n");
extern const uint8_t guest_start[], guest_poller[], guest_handler[], guest_spurious[], guest_end[];

static uint8_t *memory;
static int vcpu_fd, vcpu_cpu = -1;
static const char *vcpu_name = "CPU 0/KVM";
static size_t run_size;

static int must(int result, const char *what)
{
    if (result < 0)
        err(1, "%s", what);
    return result;
}
#define DO(fd, request, argument) must(ioctl(fd, request, argument), #request)

static uint64_t word(uint64_t at) { return *(volatile uint64_t *)(memory + at); }

static void gate(int vector, const uint8_t *handler)
{
    uint64_t to = CODE + (handler - guest_start), *entry = (uint64_t *)(memory + IDT + 16 * vector);
    entry[0] = (to & 0xffff) | 8 << 16 | 0x8e00ULL << 32 | (to >> 16 & 0xffff) << 48;
    entry[1] = to >> 32;
}

static void make_guest(void)
{
    *(uint64_t *)(memory + PML4) = PDPT | 3;
    *(uint64_t *)(memory + PDPT) = PD | 3;
    for (uint64_t i = 0; i < 4; i++)
        ((uint64_t *)(memory + PD))[i] = i << 21 | 0x83; /* 2 MiB each, as they are */
    ((uint64_t *)(memory + GDT))[1] = 0x00af9b000000ffff;
    ((uint64_t *)(memory + GDT))[2] = 0x00cf93000000ffff;
    memcpy(memory + CODE, guest_start, guest_end - guest_start);
    for (int vector = 32; vector < 256; vector++)
        gate(vector, guest_spurious);
    gate(VECTOR, guest_handler);

    struct vring_desc *desc = (void *)(memory + DESC);
    struct vring_avail *avail = (void *)(memory + AVAIL);
    for (int i = 0; i < SIZE; i++) {
        desc[i] = (struct vring_desc){BUFFERS + i * BUFFER, BUFFER, VRING_DESC_F_WRITE, 0};
        avail->ring[i] = i;
    }
    avail->idx = SIZE;
}

static int make_vm(int polls)
{
    int kvm = must(open("/dev/kvm", O_RDWR | O_CLOEXEC), "/dev/kvm");
    int vm = DO(kvm, KVM_CREATE_VM, 0);
    DO(vm, KVM_SET_TSS_ADDR, 0xfffbd000);
    DO(vm, KVM_CREATE_IRQCHIP, 0);
    struct kvm_userspace_memory_region region = {.memory_size = MEMORY, .userspace_addr = (uintptr_t)memory};
    DO(vm, KVM_SET_USER_MEMORY_REGION, &region);
    vcpu_fd = DO(vm, KVM_CREATE_VCPU, 0);
    run_size = DO(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);

    struct kvm_cpuid2 *cpuid = calloc(1, sizeof *cpuid + 256 * sizeof cpuid->entries[0]);
    cpuid->nent = 256;
    DO(kvm, KVM_GET_SUPPORTED_CPUID, cpuid);
    for (unsigned i = 0; i < cpuid->nent; i++)
        if (cpuid->entries[i].function == 1)
            cpuid->entries[i].ecx |= 1 << 21; /* x2APIC */
    DO(vcpu_fd, KVM_SET_CPUID2, cpuid);

    struct kvm_sregs s;
    DO(vcpu_fd, KVM_GET_SREGS, &s);
    struct kvm_segment code = {.limit = ~0u, .selector = 8, .type = 11, .present = 1, .s = 1, .l = 1, .g = 1};
    struct kvm_segment data = {.limit = ~0u, .selector = 16, .type = 3, .present = 1, .s = 1, .db = 1, .g = 1};
    s.cs = code;
    s.ds = s.es = s.fs = s.gs = s.ss = data;
    s.tr = (struct kvm_segment){.base = TSS, .limit = 0x67, .type = 11, .present = 1};
    s.gdt = (struct kvm_dtable){.base = GDT, .limit = 23};
    s.idt = (struct kvm_dtable){.base = IDT, .limit = 4095};
    s.cr0 = 0x80000033; /* PG, NE, ET, MP, PE */
    s.cr3 = PML4;
    s.cr4 = 0x620; /* PAE, OSFXSR, OSXMMEXCPT */
    s.efer = 0x500; /* LME, LMA */
    s.apic_base = 0xfee00000 | 0x900 | 0x400; /* BSP, enabled, x2APIC */
    DO(vcpu_fd, KVM_SET_SREGS, &s);
    struct kvm_regs r = {.rflags = 2, .rsp = STACK, .rip = CODE + (polls ? guest_poller - guest_start : 0)};
    DO(vcpu_fd, KVM_SET_REGS, &r);

    uint64_t offset = 0; /* the guest's TSC is the host's (5.16 and later) */
    struct kvm_device_attr tsc = {.group = KVM_VCPU_TSC_CTRL, .attr = KVM_VCPU_TSC_OFFSET, .addr = (uintptr_t)&offset};
    if (ioctl(vcpu_fd, KVM_SET_DEVICE_ATTR, &tsc) < 0)
        warn("the guest's TSC has an offset");
    return vm;
}

/* The NIC: its receive queue is vhost's, its interrupt an MSI behind an eventfd. */
static void make_nic(int vm, const char *name)
{
    int tap = must(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun"), header = 12;
    struct ifreq wanted = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    strncpy(wanted.ifr_name, name, IFNAMSIZ - 1);
    DO(tap, TUNSETIFF, &wanted);
    DO(tap, TUNSETVNETHDRSZ, &header);

    int call = must(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    int kick = must(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    struct {
        struct kvm_irq_routing head;
        struct kvm_irq_routing_entry entry;
    } routing = {{.nr = 1}, {.gsi = GSI, .type = KVM_IRQ_ROUTING_MSI, .u.msi = {.address_lo = 0xfee00000, .data = VECTOR}}};
    DO(vm, KVM_SET_GSI_ROUTING, &routing);
    struct kvm_irqfd irqfd = {.fd = call, .gsi = GSI};
    DO(vm, KVM_IRQFD, &irqfd);
    struct kvm_ioeventfd ioeventfd = {.addr = PORT, .len = 2, .fd = kick, .flags = KVM_IOEVENTFD_FLAG_PIO};
    DO(vm, KVM_IOEVENTFD, &ioeventfd);

    int vhost = must(open("/dev/vhost-net", O_RDWR | O_CLOEXEC), "/dev/vhost-net");
    DO(vhost, VHOST_SET_OWNER, 0);
    uint64_t features = 1ULL << VIRTIO_F_VERSION_1 | 1ULL << VIRTIO_NET_F_MRG_RXBUF;
    DO(vhost, VHOST_SET_FEATURES, &features);
    struct {
        struct vhost_memory head;
        struct vhost_memory_region region;
    } table = {{.nregions = 1}, {.memory_size = MEMORY, .userspace_addr = (uintptr_t)memory}};
    DO(vhost, VHOST_SET_MEM_TABLE, &table);
    struct vhost_vring_state number = {.index = 0, .num = SIZE}, base = {.index = 0, .num = 0};
    DO(vhost, VHOST_SET_VRING_NUM, &number);
    DO(vhost, VHOST_SET_VRING_BASE, &base);
    struct vhost_vring_addr address = {.index = 0,
                                       .desc_user_addr = (uintptr_t)memory + DESC,
                                       .avail_user_addr = (uintptr_t)memory + AVAIL,
                                       .used_user_addr = (uintptr_t)memory + USED};
    DO(vhost, VHOST_SET_VRING_ADDR, &address);
    struct vhost_vring_file file = {.index = 0, .fd = kick};
    DO(vhost, VHOST_SET_VRING_KICK, &file);
    file.fd = call;
    DO(vhost, VHOST_SET_VRING_CALL, &file);
    file.fd = tap;
    DO(vhost, VHOST_NET_SET_BACKEND, &file);
}

static void *run_vcpu(void *nothing)
{
    (void)nothing;
    prctl(PR_SET_NAME, vcpu_name);
    if (vcpu_cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(vcpu_cpu, &set);
        must(sched_setaffinity(0, sizeof set, &set), "sched_setaffinity");
    }
    struct kvm_run *run = mmap(NULL, run_size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu_fd, 0);
    if (run == MAP_FAILED)
        err(1, "mmap of the vCPU");
    for (;;) {
        if (ioctl(vcpu_fd, KVM_RUN, 0) < 0) {
            if (errno == EINTR || errno == EAGAIN)
                continue;
            err(1, "KVM_RUN");
        }
        struct kvm_regs r;
        DO(vcpu_fd, KVM_GET_REGS, &r);
        if (run->exit_reason == KVM_EXIT_IO) /* no ioeventfd for it */
            continue;
        errx(1, "the guest has left KVM: reason %u (%llx) at %llx", run->exit_reason,
             run->exit_reason == KVM_EXIT_FAIL_ENTRY ? run->fail_entry.hardware_entry_failure_reason
                                                     : (unsigned long long)run->internal.suberror, r.rip);
    }
    return NULL;
}

static void report(void)
{
    uint64_t packets = word(PACKETS);
    printf("{\"irqs\":%lu,\"packets\":%lu,\"halts\":%lu,\"kicks\":%lu,\"notes\":[", word(IRQS), packets, word(HALTS),
           word(KICKS));
    for (uint64_t first = packets > NOTES_N ? packets - NOTES_N : 0, i = first; i < packets; i++) {
        uint64_t at = NOTES + 32 * (i % NOTES_N);
        printf("%s{\"tsc\":%lu,\"irq\":%lu,\"length\":%lu,\"payload\":\"%016lx\"}", i == first ? "" : ",", word(at),
               word(at + 8), word(at + 16) >> 32, word(at + 24));
    }
    printf("]}\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int option, polls = 0;
    while ((option = getopt(argc, argv, "c:n:p")) != -1) {
        if (option == 'c') vcpu_cpu = atoi(optarg);
        else if (option == 'n') vcpu_name = optarg;
        else if (option == 'p') polls = 1;
        else return 2;
    }
    if (optind + 1 != argc)
        errx(2, "usage: tinyvm [-c CPU] [-n NAME] [-p] TAP");
    memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        err(1, "mmap");
    sigset_t signals; /* blocked in all threads: KVM_RUN is ended by the end of the process */
    sigfillset(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    make_guest();
    int vm = make_vm(polls);
    make_nic(vm, argv[optind]);

    pthread_t thread;
    if (pthread_create(&thread, NULL, run_vcpu, NULL))
        errx(1, "pthread_create");
    while (!word(READY)) /* the guest cannot wake us up */
        usleep(1000);
    printf("ready\n");
    fflush(stdout);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigwait(&signals, &option);
    report();
    _exit(0);
}
