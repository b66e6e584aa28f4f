"""What both scripts for BCC note of interrupts and softirqs: since when NET_RX runs on each CPU, and the device
interrupt that raised it. No tool reports each of these.
"""

NET_RX = r"""
struct cpu { u64 irq_ns, next_irq_ns, run_irq_ns, run_ns; };

BPF_PERCPU_ARRAY(cpus, struct cpu, 1);

static inline struct cpu *this_cpu(void)
{
    int zero = 0;

    return cpus.lookup(&zero);
}

#define THIS_CPU struct cpu *cpu = this_cpu(); if (!cpu) return 0

RAW_TRACEPOINT_PROBE(irq_handler_entry) { THIS_CPU; cpu->irq_ns = bpf_ktime_get_ns(); return 0; }
RAW_TRACEPOINT_PROBE(irq_handler_exit) { THIS_CPU; cpu->irq_ns = 0; return 0; }
RAW_TRACEPOINT_PROBE(softirq_raise)
{
    if (ctx->args[0] != 3)
        return 0;
    THIS_CPU;
    if (!cpu->next_irq_ns)
        cpu->next_irq_ns = cpu->irq_ns;
    return 0;
}
RAW_TRACEPOINT_PROBE(softirq_entry)
{
    if (ctx->args[0] != 3)
        return 0;
    THIS_CPU;
    cpu->run_ns = bpf_ktime_get_ns();
    cpu->run_irq_ns = cpu->next_irq_ns;
    cpu->next_irq_ns = 0;
    return 0;
}
RAW_TRACEPOINT_PROBE(softirq_exit)
{
    if (ctx->args[0] != 3)
        return 0;
    THIS_CPU;
    cpu->run_ns = cpu->run_irq_ns = 0;
    return 0;
}
"""
